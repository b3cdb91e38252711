"""Queues and replay that hand a trainer batches ready to train on."""

from bray_buffer.config import BufferConfig, ReservoirConfig
from bray_buffer.factory import make_buffer
from bray_buffer.mixture import Mixture
from bray_buffer.queue.buffer import Buffer
from bray_buffer.replay.replay_buffer import ReplayBuffer
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.reservoir import Reservoir

__all__ = [
    "Buffer",
    "BufferConfig",
    "Mixture",
    "ReplayBuffer",
    "ReplayConfig",
    "Reservoir",
    "ReservoirConfig",
    "make_buffer",
]
