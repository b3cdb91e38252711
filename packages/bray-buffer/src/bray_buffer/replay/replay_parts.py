"""Makes the parts of a replay that its settings ask for."""

from __future__ import annotations

from bray_buffer.replay.prioritized_sampler import PrioritizedSampler
from bray_buffer.replay.protocols import SegmentStore, SlotSampler
from bray_buffer.replay.rate_limiter import RateLimiter
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.segment_leaves import SegmentLeaves
from bray_buffer.replay.sequence_store import SequenceStore
from bray_buffer.replay.transition_store import TransitionStore
from bray_buffer.replay.uniform_samplers import UniformSampler, UniformSubsetSampler
from bray_buffer.replay.whole_segment_store import WholeSegmentStore
from bray_core.errors import ConfigError
from bray_core.layout import Layout


def make_sampler(config: ReplayConfig) -> SlotSampler:
    """Return the sampler that chooses slots."""
    if config.sampler == "prioritized":
        return PrioritizedSampler(config.capacity, config.alpha, config.beta, config.epsilon)
    chosen = config.unit == "sequence"
    return UniformSubsetSampler(config.capacity) if chosen else UniformSampler(config.capacity)


def make_store(layout: Layout, config: ReplayConfig, sampler: SlotSampler) -> SegmentStore:
    """Return the store that keeps segments.

    Raises:
        ConfigError: the layout lacks what the unit needs, or a segment exceeds the capacity.
    """
    if config.unit == "segment":
        return WholeSegmentStore(layout, config, sampler)
    leaves = SegmentLeaves(layout)
    if leaves.length > config.capacity:
        raise ConfigError(
            f"capacity: expected {leaves.length} steps or more, those of one segment, "
            f"got {config.capacity}"
        )
    kind = TransitionStore if config.unit == "transition" else SequenceStore
    return kind(leaves, config, sampler)


def make_limiter(config: ReplayConfig) -> RateLimiter | None:
    """Return the limiter of the samples per insert, if there is one."""
    if config.samples_per_insert is None or config.error_margin is None:
        return None
    return RateLimiter(
        config.samples_per_insert, config.error_margin, config.min_size, config.batch_size
    )
