"""Language models: generation in continuous batches, with the log-probability of every token."""
