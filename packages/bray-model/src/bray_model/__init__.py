"""Inference of policies: dynamic batching, versions, ONNX export and serving without torch."""

from bray_model.config import ModelConfig
from bray_model.engine import Engine
from bray_model.export_report import ExportReport, OutputError
from bray_model.manifest import Manifest
from bray_model.model import Model
from bray_model.signature import Signature

__all__ = [
    "Engine",
    "ExportReport",
    "Manifest",
    "Model",
    "ModelConfig",
    "OutputError",
    "Signature",
]
