"""The OpenAI-compatible endpoint of a language model, its sessions, and the episodes they give."""
