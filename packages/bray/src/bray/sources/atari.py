"""Settings that suit Atari games on this machine, where nobody says otherwise."""

from __future__ import annotations

from typing import Any

import torch

from bray.sources.cpu_precision import quickest_precision
from bray_core.process.machine import memory_bytes, num_cores

NUM_ENVS = 64
"""Games of a worker: half of them are a batch that a core infers nearly as fast as larger ones."""

_STEP_BYTES = 2 * 84 * 84
"""Memory of a step in a replay, at most: its frame, and its share of what a segment has once."""


def settings() -> dict[str, Any]:
    """Return settings that algorithms share for these games, by dotted name, for this machine.

    On Ray half of the cores' number of workers play, each with threads for its games: the other
    half is left to the network's training.
    """
    on_gpu = device() == "cuda"
    return {
        "model.hidden": (512,),
        "source.num_envs": NUM_ENVS,
        "actor.num_workers": _num_workers(),
        "trainer.precision": "bf16" if on_gpu else quickest_precision(),
        "trainer.device": device(),
    }


def device() -> str:
    """Return what trains a convolutional network: a GPU, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def shared(steps: int) -> int:
    """Return so many steps or a few more, of which all environments play an equal part."""
    share = NUM_ENVS * _num_workers()
    return -(-steps // share) * share


def capacity() -> int:
    """Return the steps of a replay of frames, each stored once, in a third of the memory."""
    fitting = memory_bytes() // 3 // _STEP_BYTES
    return min(1_000_000, max(20_000, fitting // 10_000 * 10_000))


def _num_workers() -> int:
    return max(1, num_cores() // 2)
