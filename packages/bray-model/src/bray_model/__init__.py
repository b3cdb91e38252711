"""Inference of policies: dynamic batching, versions, ONNX export and serving without torch."""
