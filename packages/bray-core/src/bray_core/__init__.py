"""Nested arrays, packed layouts, codec, metrics, experiments, config and the bray command."""

from bray_core import nested
from bray_core.codec import decode, encode
from bray_core.errors import BrayError
from bray_core.event_loop import EventLoopThread
from bray_core.experiment import Experiment
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.runtime import Runtime, current, init, shutdown

__all__ = [
    "ArraySpec",
    "BrayError",
    "EventLoopThread",
    "Experiment",
    "Layout",
    "Packed",
    "Runtime",
    "current",
    "decode",
    "encode",
    "init",
    "nested",
    "shutdown",
]
