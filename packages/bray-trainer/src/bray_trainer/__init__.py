"""A torch training loop: replay in, published weights and whole checkpoints out."""
