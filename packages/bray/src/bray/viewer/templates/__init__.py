"""The builder: templates drawn, edited, checked, saved and started from a browser."""
