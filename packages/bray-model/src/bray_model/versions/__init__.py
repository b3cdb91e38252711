"""Versions of weights: checked, published, awaited, kept on disk."""
