"""Gradients by hand, where recording a graph would take longer than the arithmetic."""
