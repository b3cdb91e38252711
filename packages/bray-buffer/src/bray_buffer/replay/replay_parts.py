"""The parts of a replay, as its settings say."""

from __future__ import annotations

from bray_buffer.replay.prioritized import Prioritized
from bray_buffer.replay.rate_limiter import RateLimiter
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.sampling import Sampler, Store
from bray_buffer.replay.segment_leaves import SegmentLeaves
from bray_buffer.replay.sequences import Sequences
from bray_buffer.replay.transitions import Transitions
from bray_buffer.replay.uniform import Uniform, UniformChosen
from bray_buffer.replay.whole_segments import WholeSegments
from bray_core.errors import ConfigError
from bray_core.layout import Layout


def make_sampler(config: ReplayConfig) -> Sampler:
    """Return what chooses slots."""
    if config.sampler == "prioritized":
        return Prioritized(config.capacity, config.alpha, config.beta, config.epsilon)
    chosen = config.unit == "sequence"
    return UniformChosen(config.capacity) if chosen else Uniform(config.capacity)


def make_store(layout: Layout, config: ReplayConfig, sampler: Sampler) -> Store:
    """Return what keeps segments.

    Raises:
        ConfigError: the layout lacks what the unit needs, or a segment exceeds the capacity.
    """
    if config.unit == "segment":
        return WholeSegments(layout, config, sampler)
    leaves = SegmentLeaves(layout)
    if leaves.length > config.capacity:
        raise ConfigError(
            f"capacity: expected {leaves.length} steps or more, those of one segment, "
            f"got {config.capacity}"
        )
    kind = Transitions if config.unit == "transition" else Sequences
    return kind(leaves, config, sampler)


def make_limiter(config: ReplayConfig) -> RateLimiter | None:
    """Return what limits the samples per insert, if anything does."""
    if config.samples_per_insert is None or config.error_margin is None:
        return None
    return RateLimiter(
        config.samples_per_insert, config.error_margin, config.min_size, config.batch_size
    )
