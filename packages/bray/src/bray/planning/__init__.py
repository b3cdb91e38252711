"""What many machines would do with a template."""
