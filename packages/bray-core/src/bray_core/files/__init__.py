"""Files that other programs may have written, or may be reading."""
