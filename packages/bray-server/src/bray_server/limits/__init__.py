"""What a server grants, and to whom."""
