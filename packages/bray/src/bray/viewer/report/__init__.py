"""A report on trials: one HTML file without script, which opens from a disk or out of a letter."""
