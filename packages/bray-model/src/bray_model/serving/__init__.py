"""Exports as services: `bray serve`, the Open Inference Protocol."""
