"""Plans of TensorRT below the user's cache folder: one takes seconds to minutes to make."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from bray_core.files.saved_file import write_atomic
from bray_core.protocols import Weights
from bray_model.engines.onnx_engine import WEIGHT_PREFIX

logger = logging.getLogger(__name__)


def plan_path(made_from: Mapping[str, str | int]) -> Path:
    """Return where the plan made from these belongs, below `$XDG_CACHE_HOME` or `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    key = json.dumps(dict(made_from), sort_keys=True).encode()
    return Path(cache) / "bray" / "tensorrt" / f"{hashlib.sha256(key).hexdigest()}.plan"


def cached_plan(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what is at `path`, or make it and write it there whole."""
    try:
        return path.read_bytes()
    except OSError:  # not there, or not to be read
        plan = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, plan)
    except OSError as error:
        logger.warning("%s: cannot be written (%s): it is made anew next time", path, error)
    return plan


def bake(exchange: bytes, weights: Weights) -> bytes:
    """Return the graph that takes its weights as inputs with these weights as constants."""
    model = onnx.load_from_string(exchange)
    inputs = list(model.graph.input)
    del model.graph.input[:]
    for tensor in inputs:
        if tensor.name.startswith(WEIGHT_PREFIX):
            array = weights[tensor.name.removeprefix(WEIGHT_PREFIX)]
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, tensor.name))
        else:
            model.graph.input.append(tensor)
    baked: bytes = model.SerializeToString()
    return baked
