"""Choosing tokens: what may follow, what it costs in likelihood, and the draw."""
