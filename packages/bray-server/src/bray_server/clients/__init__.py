"""What calls a server: over a socket, or in its own process."""
