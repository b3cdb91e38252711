"""Readers of data sets, one for each form in which they come."""
