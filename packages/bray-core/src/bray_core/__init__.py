"""Nested arrays, packed layouts, codec, metrics, experiments, config and the bray command."""
