"""Networks that act: encoders of observations, memory, and heads for actions and values."""
