"""Trials: the folders of a project, what lies in them, and who holds them."""
