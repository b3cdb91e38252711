"""torch to ONNX, compared with the module; smaller graphs made of it."""
