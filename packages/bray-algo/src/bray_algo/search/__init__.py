"""Tree search, and what learns from it."""
