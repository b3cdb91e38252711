"""Files that others may have written, or may be reading."""
