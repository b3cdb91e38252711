"""Runs of several policies: who plays what, learners side by side, one loop for all."""
