"""Clients: over a socket, or in the process of the service."""
