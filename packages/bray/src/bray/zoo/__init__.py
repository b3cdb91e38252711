"""Tuned settings by task, as data: those of every figure in `benchmarks`."""
