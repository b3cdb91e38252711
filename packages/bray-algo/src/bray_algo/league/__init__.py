"""Who plays whom, and how good they are: leagues, ratings, payoff tables."""
