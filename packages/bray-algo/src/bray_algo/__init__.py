"""Reinforcement-learning networks, distributions, returns, losses and league rules as plain torch functions."""
