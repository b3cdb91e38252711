"""Sinks that a template may name under `sinks:`: one file each."""
