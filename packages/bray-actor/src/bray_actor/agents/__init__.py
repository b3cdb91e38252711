"""Agents that answer a session together, and what they share during a tick."""
