"""Small tasks that a language model learns from scratch within minutes on one core."""
