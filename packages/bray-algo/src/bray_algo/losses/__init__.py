"""One file for each algorithm: the loss that it minimises, as a function of tensors."""
