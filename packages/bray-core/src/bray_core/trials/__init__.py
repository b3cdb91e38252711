"""Trials: their folders, files, locks and logs."""
