"""What computes a batch: torch, onnxruntime, TensorRT."""
