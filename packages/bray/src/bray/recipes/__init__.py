"""Recipes: an algorithm and the runtime, one file each, readable from top to bottom."""
