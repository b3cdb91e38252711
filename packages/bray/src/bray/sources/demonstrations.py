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
from bray_buffer.sources import SourceBuffer, SourceConfig
from bray_core import codec, nested
from bray_core.action_vector import ActionVector
from bray_core.errors import BrayError, ConfigError
from bray_core.nested import ArraySpec, Nested
from bray_core.protocols import ModelProtocol
from bray_core.spaces import Spaces


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
        raise ConfigError(f"demonstrations: expected a folder of *{SUFFIX} files, got {folder}")
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
            steps = _steps(read_episode(self._paths[unit]), self._gamma)
            if steps:
                samples = nested.stack(steps)
                if self._actions is not None:
                    samples["action"] = self._actions.flatten(samples["action"])
                yield samples

    def describe(self, unit: int) -> str:
        """Return the path."""
        return str(self._paths[unit])


def source(
    folder: str | Path,
    spaces: Spaces,
    *,
    gamma: float,
    batch_size: int,
    seed: int,
) -> SourceBuffer:
    """Return a buffer of the steps of a folder's episodes, shuffled, again and again.

    Args:
        folder: folder of recorded episodes.
        spaces: what was seen and done.
        gamma: discount per step, of the returns.
        batch_size: steps.
        seed: seed of the order.

    Raises:
        ConfigError: there are no episodes.
    """
    config = SourceConfig(
        batch_size=batch_size, epochs=None, shuffle=True, shuffle_size=16_384, seed=seed
    )
    number = ArraySpec(np.dtype(np.float32), ())
    actions = ActionVector(spaces.action, spaces.origin)
    spec = {"observation": spaces.recorded, "action": actions.spec, "return": number}
    return SourceBuffer(Demonstrations(folder, gamma, actions), config, layout=spec)


def _steps(episode: Episode, gamma: float) -> list[dict[str, Any]]:
    """Return the samples of an episode, from its end, where the returns are known."""
    samples: list[dict[str, Any]] = []
    following: dict[str, Any] = {}
    to_go = math.nan
    for request in reversed(episode.requests):
        message = codec.decode(request.body)
        if request.kind == "tick" and request.reply is not None:
            to_go = float(following.get("reward", math.nan)) + gamma * to_go
            samples.append(
                {
                    "observation": nested.map(_narrow, message["observation"]),
                    "action": nested.map(_narrow, codec.decode(request.reply)["action"]),
                    "return": np.float32(to_go),
                }
            )
        elif request.kind == "end":
            to_go = 0.0 if message.get("terminated") else math.nan
        following = message
    return samples


def _narrow(leaf: Any) -> Any:
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
