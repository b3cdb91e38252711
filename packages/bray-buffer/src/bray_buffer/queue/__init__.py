"""A queue: each segment is used once."""
