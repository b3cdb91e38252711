"""Segments as trainers take them, `[T, B]`, and a policy replayed over them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bray_core import nested
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_trainer.frame_stacks import FrameStacks, as_tensors, rearrange
from bray_trainer.transfer import to_torch

Batch = dict[str, Any]

STEPS = ("observation", "action", "reward", "value", "log_prob", "terminated", "discounted_return")
"""Leaves of each step that trainers read."""
_ROWS = 16
"""The rows of a forward are padded to a multiple of this: oneDNN prepares a convolution for each
number of rows that it meets, and keeps all of them."""
IS_CURRENT = "is_current"
"""Leaf of steps that were acted by the version that the trainer's weights are: see `PlayGap`."""
_BY_TIME = {*STEPS, "advantage", "return", IS_CURRENT}
"""Leaves `[T, B, …]`: those of `STEPS`, and what trainers add."""


def in_order(replay: Packed) -> Packed:
    """Put the segments into an order that does not depend on when each one arrived."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in replay.block]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    return Packed(replay.layout, replay.block[order])


def time_major(replay: Packed, device: torch.device | str = "cpu") -> Batch:
    """Return the leaves of segments: those of `STEPS` `[T, B, …]`, the others as they are.

    Where segments store each frame once (`segment_spec(stack=True)`), the frames alone go to the
    device, and observations are `FrameStacks`.
    """
    steps = tuple(name for name in STEPS if name in replay.layout.spec)
    tree: Batch = to_torch(replay, device, time_major=steps)
    tree["length"] = tree["length"].long()
    if "frames" in tree:
        frames, length = tree.pop("frames"), len(tree["reward"])  # [B, T + C, …]
        first = torch.arange(len(frames), device=frames.device) * frames.shape[1]
        time = torch.arange(length, device=frames.device)
        stacks = FrameStacks(frames.flatten(0, 1), first + time[:, None], frames.shape[1] - length)
        tree["observation"] = stacks
        tree["final_observation"] = replace(stacks, first=first + tree["length"])
    return tree


def valid_steps(segments: Batch) -> Tensor:
    """Return which steps are no padding, bool `[T, B]`."""
    time = torch.arange(len(segments["reward"]), device=segments["length"].device)
    valid: Tensor = time[:, None] < segments["length"]
    return valid


def unroll(module: nn.Module, segments: Batch) -> tuple[Batch, Tensor]:
    """Return a policy's outputs for each step, `[T, B, …]`, and the value after the last, `[B]`.

    The outputs of padding are zeros; for a recurrent policy they mean nothing. It goes through
    each segment from the state in which it began. (A segment lies within one episode: none begins
    inside.) After a termination the value means nothing.

    Args:
        module: A policy, recurrent or not.
        segments: Leaves from `time_major`.
    """
    if "initial_state" in segments:
        return _unroll_memory(module, segments)
    valid, number = valid_steps(segments), len(segments["length"])
    count = int(segments["length"].sum())
    spare = -(count + number) % _ROWS

    def rows(steps: Tensor, final: Tensor) -> Tensor:
        """Return what is no padding."""
        return torch.cat([steps[valid], final, final.new_zeros((spare, *final.shape[1:]))])

    observation = nested.map(
        partial(rearrange, rows), segments["observation"], segments["final_observation"]
    )
    outputs = module(as_tensors(observation))

    def in_place(leaf: Tensor) -> Tensor:
        columns = leaf.new_zeros((*valid.shape, *leaf.shape[1:]))
        columns[valid] = leaf[:count]
        return columns

    return nested.map(in_place, outputs), outputs["value"][count : count + number]


def _unroll_memory(module: nn.Module, segments: Batch) -> tuple[Batch, Tensor]:
    length = segments["length"]
    columns = torch.arange(len(length), device=length.device)

    def with_final(steps: Tensor, final: Tensor) -> Tensor:
        longer = torch.cat([steps, torch.zeros_like(steps[:1])])
        longer[length, columns] = final
        return longer

    observation = nested.map(
        partial(rearrange, with_final), segments["observation"], segments["final_observation"]
    )
    outputs = module.replay(as_tensors(observation), segments["initial_state"], length + 1)  # type: ignore[operator]
    return nested.map(lambda leaf: leaf[:-1], outputs), outputs["value"][length, columns]


def next_observation(segments: Batch) -> Nested:
    """Return the observation after each step, leaves `[T, B, …]`; those of padding mean nothing."""
    last = segments["length"] - 1
    columns = torch.arange(len(last), device=last.device)

    def following(steps: Tensor, final: Tensor) -> Tensor:
        moved = torch.cat([steps[1:], steps[:1]])
        moved[last, columns] = final
        return moved

    moved: Nested = nested.map(
        partial(rearrange, following), segments["observation"], segments["final_observation"]
    )
    return moved


def final_value(module: nn.Module, segments: Batch) -> Tensor:
    """Return the value after the last step, `[B]`."""
    if "initial_state" in segments:
        return unroll(module, segments)[1]
    value: Tensor = module(as_tensors(segments["final_observation"]))["value"]
    return value


def select_segments(segments: Batch, index: Tensor) -> Batch:
    """Return some segments, by their numbers `[b]`."""
    return {
        name: nested.map(lambda leaf: leaf[:, index], tree)
        if name in _BY_TIME
        else nested.map(lambda leaf: leaf[index], tree)
        for name, tree in segments.items()
    }


def select_steps(tree: Batch, index: Tensor) -> Batch:
    """Return the rows that an index, or a mask of one or more dimensions, chooses in each leaf."""
    chosen: Batch = nested.map(lambda leaf: leaf[index], tree)
    return chosen
