"""One file an algorithm: what it minimises."""
