"""What a model and its clones share: the network, one thread, and the memory for engines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bray_core.errors import ConfigError
from bray_model.batching.executor import Executor
from bray_model.config import ModelConfig
from bray_model.engines.definition import Definition
from bray_model.engines.engine import Current
from bray_model.versions.weights import WeightsCheck


class Worker:
    """Made with the first model, the root, and closed with it.

    Args:
        definition: its engine belongs to the worker from now on.
        config: batching and memory.
        name: of the root, for the thread.
        directory: whether the root has one.

    Raises:
        ConfigError: a directory for the versions of weights that are fixed.
    """

    def __init__(
        self, definition: Definition, config: ModelConfig, name: str, *, directory: bool
    ) -> None:
        weights = definition.engine.weights()
        if weights is None and directory:
            raise ConfigError("directory: the weights of an export are fixed: leave it out")
        self.definition = definition
        self.config = config
        self.check_weights = None if weights is None else WeightsCheck(weights)
        """What weights must be like; None where they are fixed."""
        current = Current(definition.version, weights)
        self.executor = Executor(definition.engine, definition.signature, config, current)
        """The root's; a clone has one made from it."""
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=f"bray-model-{name}")
        self.is_closed = False

    def close(self) -> None:
        """Let the thread end after the batches that it has."""
        self.is_closed = True
        self.pool.shutdown(wait=False)
