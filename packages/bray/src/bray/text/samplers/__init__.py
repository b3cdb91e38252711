"""What samples for a language model: in this process, or in processes of its own on Ray."""
