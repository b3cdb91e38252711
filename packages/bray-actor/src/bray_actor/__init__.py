"""Actors and agents that answer a simulator, in training and in production."""
