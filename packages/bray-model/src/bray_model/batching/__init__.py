"""Rows that wait for company and run together."""
