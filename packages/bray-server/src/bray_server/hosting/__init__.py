"""A server: its ports, connections and workers."""
