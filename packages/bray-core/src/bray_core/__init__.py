"""Nested arrays, packed layouts, codec, metrics, experiments, config and the bray command."""

from bray_core import lazy
from bray_core.remote import ray_environment

TYPE_CHECKING = False  # as `typing` says it: this package is the first that a command loads
if TYPE_CHECKING:
    from bray_core.codec import decode, encode
    from bray_core.errors import BrayError
    from bray_core.layout import Layout, Packed
    from bray_core.nested import ArraySpec
    from bray_core.process.event_loop import EventLoopThread
    from bray_core.runtime import Runtime, current, init, shutdown
    from bray_core.trials.experiment import Experiment

ray_environment.prepare()

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
    "shutdown",
]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "ArraySpec": "bray_core.nested",
        "BrayError": "bray_core.errors",
        "EventLoopThread": "bray_core.process.event_loop",
        "Experiment": "bray_core.trials.experiment",
        "Layout": "bray_core.layout",
        "Packed": "bray_core.layout",
        "Runtime": "bray_core.runtime",
        "current": "bray_core.runtime",
        "decode": "bray_core.codec",
        "encode": "bray_core.codec",
        "init": "bray_core.runtime",
        "shutdown": "bray_core.runtime",
    },
)
