"""Monte-Carlo tree search, and self-play by it."""
