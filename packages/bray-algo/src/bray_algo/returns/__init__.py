"""Returns, advantages and targets."""
