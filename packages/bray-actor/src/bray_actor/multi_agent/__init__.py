"""Environments of several agents, and the policies that play in them."""
