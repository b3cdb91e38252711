"""Steps whose gradients are found by hand, wholly or behind a module."""
