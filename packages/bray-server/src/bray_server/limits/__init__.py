"""Limits of a server, and who may use it."""
