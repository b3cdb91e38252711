"""What goes over a connection: frames, deltas, addresses."""
