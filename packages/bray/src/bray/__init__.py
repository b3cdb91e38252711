"""Train reinforcement-learning agents and put them in production: the umbrella package."""
