"""Makes the plain buffer that a config asks for."""

from __future__ import annotations

from collections.abc import Callable

from bray_buffer.config import BufferConfig
from bray_buffer.queue.buffer import Buffer
from bray_buffer.replay.replay_buffer import ReplayBuffer
from bray_buffer.replay.replay_config import ReplayConfig
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.nested import Nested


def make_buffer(
    layout: Layout | Nested,
    config: BufferConfig | ReplayConfig,
    transform: Callable[[Nested], Nested] | None = None,
) -> Buffer | ReplayBuffer:
    """Make a queue or a replay, by the kind of its config.

    Raises:
        ConfigError: the config is of another kind, or the buffer refuses it.
    """
    if isinstance(config, BufferConfig):
        return Buffer(layout, config, transform)
    if isinstance(config, ReplayConfig):
        return ReplayBuffer(layout, config, transform)
    raise ConfigError(
        f"config: expected a BufferConfig or a ReplayConfig, got {type(config).__name__}"
    )
