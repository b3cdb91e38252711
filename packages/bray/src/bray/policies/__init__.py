"""Networks that act: encoders of observations, memory, heads."""
