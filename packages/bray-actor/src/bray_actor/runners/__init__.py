"""Environments stepped in this process, many at a time."""
