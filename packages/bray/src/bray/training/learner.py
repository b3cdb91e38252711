"""What trains one policy in a run: its model, its buffer and its trainer, whatever plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from bray.training.loop import Turn
from bray_actor import PolicyConfig
from bray_buffer import BufferConfig, ReplayConfig
from bray_core import metrics
from bray_core.nested import Nested
from bray_core.spaces import Spaces
from bray_model import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerPlace:
    """Where a learner stands in its run: the names of its components, and who plays for it."""

    model: str = "policy"
    """Name of the model."""
    buffer: str
    """Name of the buffer."""
    trainer: str = "trainer"
    """Name of the trainer."""
    label: str | None = None
    """Label `trainer` of what its process on Ray records, where there are several trainers; None:
    it is the only one."""
    checkpoints: Path
    """Folder of the trainer's checkpoints."""
    batching: ModelConfig
    """Rows that one worker asks the model at once."""
    seed: int
    """Seed of network and draws."""
    holds: BufferConfig | ReplayConfig | None = None
    """Settings of the buffer; None: those that the algorithm makes."""
    mixture: Mapping[str, tuple[Any, float]] = field(default_factory=dict)
    """Buffers by name that the trainer draws from, with their settings and shares, where there are
    several in place of the one buffer: a `ReplayConfig`, the algorithm's own settings of a buffer,
    or a `DataSetPlace`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """The components that train one policy."""

    spaces: Spaces
    """What the policy sees and may do."""
    module: nn.Module
    """The network as it began, on the CPU: what snapshots of the model are made of."""
    example: Nested
    """Inputs of the network, with a batch dimension."""
    model: Any
    """Answers observations, with the newest version."""
    buffer: Any
    """Holds what was recorded until it is trained on; None: it learns from a data set alone."""
    replays: Mapping[str, Any]
    """The replays that the buffer mixes, by name; empty where it is one itself."""
    min_size: int
    """What each of these holds before the first training; 0 without a mixture."""
    make_trainer: Callable[[], Any]
    """Makes what trains, and publishes to the model."""
    trainer: Any = None
    """What trains; None until `with_trainer` has made it."""
    policy: PolicyConfig
    """How the policy acts while it is trained."""
    turn: Turn
    """Order of playing and training in a local run."""
    batch_steps: int | None
    """Recorded steps that the queue gives at once; None: it is a replay."""
    steps_per_version: int | None
    """Recorded steps of all that play, after which the next policy version is waited for; None
    waits for none."""
    max_replays: int | None = None
    """Replays after which it has learnt all that it will, of a data set; None: it goes on."""

    def with_trainer(self) -> Learner:
        """Return it with its trainer made.

        Whoever calls over the wire is answered before: making a trainer takes seconds.
        """
        return replace(self, trainer=self.make_trainer())


def labelled(make: Callable[[], Any], label: str) -> Any:
    """Make a trainer in a process of its own, whose metrics are told apart from now on.

    Args:
        make: makes the trainer.
        label: label `trainer` of its metrics.
    """
    metrics.label_process(trainer=label)
    return make()
