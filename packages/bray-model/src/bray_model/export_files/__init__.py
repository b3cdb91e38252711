"""The files of an export: its folder, manifest and graphs, checked as they are read."""
