"""A model in several processes: one store of weights, replicas, inference workers."""
