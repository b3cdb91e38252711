"""Games of two players: matches, opponents, frozen versions and what their games have shown."""
