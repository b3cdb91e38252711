"""What trains a language model on rows of tokens."""
