"""Policies of other libraries, taken over into trials of bray."""
