"""How environments are made: by id, from a class of yours, with wrappers, in processes."""
