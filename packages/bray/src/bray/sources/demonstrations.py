"""Demonstrations: recorded episodes of `PolicyActor`'s messages, as samples to imitate.

Whoever answers in that form can demonstrate: a script, a policy, a human at the other end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bray.sources.environments import read_spaces
from bray_actor import PolicyActor, PolicyConfig, Recorder, read_episode
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.gamecore import play
from bray_actor.recording import SUFFIX, Episode
from bray_core import codec, nested
from bray_core.action_vector import ActionVector
from bray_core.errors import BrayError, ConfigError
from bray_core.nested import Nested
from bray_core.protocols import ModelProtocol


def record(
    folder: str | Path,
    environment: str | EnvironmentSpec,
    model: ModelProtocol,
    *,
    episodes: int,
    seed: int,
) -> list[float]:
    """Let a policy play and record it; return the episodes' returns.

    The same model and seed give the same episodes. A file's name has the time in it: the names
    differ, their order does not.

    Args:
        folder: where the files go; made if it is absent.
        environment: a Gymnasium id, or how it is made.
        model: its outputs are an action's distribution, which is drawn from, and `value`; a
            script can be one.
        episodes: how many.
        seed: seed of environment and draws.

    Raises:
        BrayError: an episode could not be written; the log says why.
    """
    recorder = Recorder(folder, every=1, max_files=1_000_000, max_waiting=episodes)
    before = len(recorder.files())
    config = PolicyConfig(seed=seed, spaces=read_spaces(environment).described())
    actors = recorder.record(PolicyActor.factory(model, config))
    try:
        returns = play(environment, actors, episodes=episodes, seed=seed)
    finally:
        recorder.close()
    if (written := len(recorder.files()) - before) != episodes:
        raise BrayError(f"demonstrations: {written} of {episodes} episodes are in {folder}")
    return returns


def files(folder: str | Path) -> list[Path]:
    """Return the recorded episodes of a folder, the oldest first.

    Raises:
        ConfigError: there are none.
    """
    found = sorted(Path(folder).glob(f"*{SUFFIX}"))
    if not found:
        raise ConfigError(
            f"demonstrations: expected a folder of *{SUFFIX} files, got {folder}: other data sets "
            "are minari:NAME, .parquet or .arrow files, and objects:file.py:function"
        )
    return found


class Demonstrations:
    """A `bray_buffer.sources.Source` of recorded episodes: all steps of one are read at once.

    A sample is `{"observation", "action", "return"}` of a tick that was answered; the return is
    the discounted sum of the rewards that followed, NaN where the episode did not terminate.

    Args:
        folder: folder of recorded episodes.
        gamma: discount per step.
        actions: turns actions as the simulator took them into arrays; None leaves them.

    Raises:
        ConfigError: there are none.
    """

    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(
        self, folder: str | Path, gamma: float, actions: ActionVector | None = None
    ) -> None:
        self._paths = files(folder)
        self._actions = actions
        self._gamma = gamma
        self.num_units = len(self._paths)

    def read(self, units: Sequence[int]) -> Iterator[Nested]:
        """Yield the steps of episodes, leaves `[n, …]`."""
        for unit in units:
            found = steps(read_episode(self._paths[unit]), self._gamma)
            if found:
                leaves = ("observation", "action", "return")
                samples = nested.stack([{name: step[name] for name in leaves} for step in found])
                if self._actions is not None:
                    samples["action"] = self._actions.flatten(samples["action"])
                yield samples

    def describe(self, unit: int) -> str:
        """Return the path."""
        return str(self._paths[unit])


def steps(episode: Episode, gamma: float) -> list[dict[str, Any]]:
    """Return the answered steps of an episode, from its end, where the returns are known.

    Each has `observation`, `action`, `return` as a sample of `Demonstrations`, `reward` (NaN where
    the session was lost before it came), `discount` (0 where the episode terminated, else γ) and
    `next_observation`, None where it is not known. Truncated steps have their own episode's last.

    Args:
        episode: what was recorded.
        gamma: discount γ per step.
    """
    found: list[dict[str, Any]] = []
    following: dict[str, Any] = {}
    to_go, discount = math.nan, gamma
    for request in reversed(episode.requests):
        message = codec.decode(request.body)
        if request.kind == "tick" and request.reply is not None:
            reward = float(following.get("reward", math.nan))
            to_go = reward + gamma * to_go
            seen = nested.map(narrow, message["observation"])
            # Nothing that follows a terminated step counts, and no actor reads it: what was seen
            # last stands in for it.
            after = following.get("observation") if discount else message["observation"]
            found.append(
                {
                    "observation": seen,
                    "action": nested.map(narrow, codec.decode(request.reply)["action"]),
                    "return": np.float32(to_go),
                    "reward": np.float32(reward),
                    "discount": np.float32(discount),
                    "next_observation": None if after is None else nested.map(narrow, after),
                }
            )
            discount = gamma
        elif request.kind == "end":
            is_terminated = bool(message.get("terminated"))
            to_go, discount = (0.0, 0.0) if is_terminated else (math.nan, gamma)
        following = message
    return found


def narrow(leaf: Any) -> Any:
    """Return an array in float32 if it is float64 (`Spaces.recorded`)."""
    array = np.asarray(leaf)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def mean_return(folder: str | Path) -> float:
    """Return the mean sum of rewards of a folder's episodes.

    Raises:
        ConfigError: there are none.
    """
    return float(np.mean([_return(read_episode(path)) for path in files(folder)]))


def _return(episode: Episode) -> float:
    messages = (codec.decode(r.body) for r in episode.requests if r.kind != "start")
    return sum(float(message.get("reward", 0.0)) for message in messages)
