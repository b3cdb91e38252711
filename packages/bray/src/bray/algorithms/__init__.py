"""Algorithms and their declarations: one file each, readable from top to bottom."""
