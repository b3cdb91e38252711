"""Inference of policies: dynamic batching, versions, ONNX export and serving without torch.

Names are loaded when they are first used, so that `bray --help` need not load numpy.
"""

import os
from typing import TYPE_CHECKING

from bray_core import lazy

if TYPE_CHECKING:
    from bray_model.config import ModelConfig
    from bray_model.engines.engine import Engine
    from bray_model.export.export_report import ExportReport, OutputError
    from bray_model.export_files.manifest import Manifest
    from bray_model.model import Model
    from bray_model.model_pool import ModelPool
    from bray_model.signature import Signature
    from bray_model.versions.retention import Retention

# Else onnxruntime keeps a journal in the user's home, and a thread that sends it to its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "Engine",
    "ExportReport",
    "Manifest",
    "Model",
    "ModelConfig",
    "ModelPool",
    "OutputError",
    "Retention",
    "Signature",
]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Engine": "bray_model.engines.engine",
        "ExportReport": "bray_model.export.export_report",
        "Manifest": "bray_model.export_files.manifest",
        "Model": "bray_model.model",
        "ModelConfig": "bray_model.config",
        "ModelPool": "bray_model.model_pool",
        "OutputError": "bray_model.export.export_report",
        "Retention": "bray_model.versions.retention",
        "Signature": "bray_model.signature",
    },
)
