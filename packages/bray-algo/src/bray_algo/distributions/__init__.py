"""Action distributions as functions of a network's outputs."""
