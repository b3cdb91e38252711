"""Checkpoints of a trainer: files, the state of random numbers, writing and resuming."""
