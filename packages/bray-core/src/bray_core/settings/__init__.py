"""Settings as they were written: YAML into checked dataclasses, each fault with its place."""
