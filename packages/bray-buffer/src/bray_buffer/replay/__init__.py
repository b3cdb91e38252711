"""Replays: segments are kept, and drawn many times."""
