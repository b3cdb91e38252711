"""Models built like Llama, computed with few operations a layer."""
