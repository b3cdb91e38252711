"""Whether a network of yours can be exported: found out before it is trained for a night."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from bray_core.errors import ExportError
from bray_model import Model, ModelConfig

logger = logging.getLogger(__name__)


def warn_of_export(module: nn.Module, example: Any, name: str) -> None:
    """Say where a module with a part of yours has no export; others are bray's care.

    The module is exported once, to a folder that is thrown away: half a second for most, up to some
    ten where torch reads it by its slower exporter.

    Args:
        module: policy that is trained.
        example: inputs of the module, with a batch dimension.
        name: name of its model.
    """
    if all(map(_is_of_bray_or_torch, module.modules())):
        return
    model = Model(module, example, name=name, config=ModelConfig(max_batch_size=2))
    try:
        with TemporaryDirectory() as folder:
            model.export(Path(folder) / name)
    except ExportError as error:
        words = (
            "model.network: it trains, but cannot be exported, which `bray serve` and `bray watch` "
            f"need: {error}"
        )
        logger.warning("%s", words)
        sys.stdout.write(f"warning: {words}\n")
        sys.stdout.flush()
    finally:
        model.close()


def _is_of_bray_or_torch(part: nn.Module) -> bool:
    package = type(part).__module__.partition(".")[0]
    return package in ("torch", "bray") or package.startswith("bray_")
