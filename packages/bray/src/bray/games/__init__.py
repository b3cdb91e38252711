"""Games of two players: matches, opponents, versions that played before."""
