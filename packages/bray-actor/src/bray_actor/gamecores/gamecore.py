"""A gamecore that plays Gymnasium environments: it calls the actor, as any simulator would.

    python -m bray_actor.gamecores.gamecore --env CartPole-v1 --address tcp://127.0.0.1:7300
    --num-envs 8

Each environment is a lane; each of its episodes is a session `lane/episode`. All lanes share one
connection, and their ticks are sent together.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.actor_client import connect, exchange_bodies
from bray_actor.gamecores.environments import (
    Environments,
    SingleEnvironments,
    StepOutcome,
    VectorEnvironments,
    make_vector,
    seed_of_lane,
    share_of_lane,
)
from bray_actor.gamecores.gamecore_process import die_with_parent, exit_quietly, play_on
from bray_actor.spaces import resolve
from bray_core import codec
from bray_core.errors import BrayError, ConfigError
from bray_core.metrics import uplink
from bray_core.nested import Nested
from bray_server import Client, Request
from bray_server.sessions.services import Service

_TIMEOUT_S = 900.0
"""Longer than an actor lets a tick wait for a new version or an evaluation."""
_ATARI_SEEDS = 2**30
"""Number of seeds of a run: ALE takes 31 bits, which is this and some games more."""
_EMPTY = codec.encode({})


def play(
    environment: Any,
    actors: str | Service,
    *,
    episodes: int | None = None,
    num_envs: int = 1,
    seed: int = 0,
    lane_offset: int = 0,
    token: str | None = None,
    delta: bool = False,
    vector: bool = False,
    on_episode: Callable[[float], None] | None = None,
) -> list[float]:
    """Play an environment against actors.

    Args:
        environment: A Gymnasium id, or a short name such as `cartpole`; Atari games (`ALE/Pong-v5`,
            or `Pong`) are preprocessed as by `bray_actor.atari.make_atari`. Or an
            `EnvironmentSpec`, which has wrappers and more; or a
            `gymnasium.vector.VectorEnv`, whose number of environments counts instead of `num_envs`.
        actors: Their address, `tcp://host:port` or `http://host:port`; or a function that makes a
            session's actor from its id: they then live in this process.
        episodes: Number of episodes, shared out to the lanes beforehand, so that short ones are not
            preferred; None plays until the server is gone.
        num_envs: Number of lanes played side by side.
        seed: Seed of the environments, together with the lane.
        lane_offset: Number of the first lane; keeps the sessions of several processes apart.
        token: Bearer token.
        delta: Whether to offer delta encoding of the ticks, over TCP.
        vector: Whether to make one vector environment by Gymnasium's `make_vec`, for simulators
            that step many at once. Its observations may differ from the single environment's.
        on_episode: Function that is called with each episode's return.

    Returns:
        The returns in the order of (lane, episode).

    Raises:
        ConfigError: the environment is unknown, a space cannot be played, an action is outside the
            action space, or a number out of range.
        ServiceError: the server answered with an error, or is gone.
    """
    for name, number in (("num_envs", num_envs), ("episodes", episodes)):
        if number is not None and number < 1:
            raise ConfigError(f"{name}: expected 1 or more, got {number}")
    if seed < 0:
        raise ConfigError(f"seed: expected 0 or more, got {seed}")
    first_seed = seed_of_lane(seed, lane_offset)
    environments: Environments
    if isinstance(environment, str | EnvironmentSpec):
        spec = EnvironmentSpec.of(environment)
        num_envs = num_envs if episodes is None else min(num_envs, episodes)
        if spec.is_atari:
            games = spec.make_vector(num_envs)
            environments = VectorEnvironments(games, first_seed % _ATARI_SEEDS, spec.info_metrics)
        elif vector:
            made = make_vector(resolve(spec.environment), num_envs)
            environments = VectorEnvironments(made, first_seed, spec.info_metrics)
        elif spec.stepping == "worker":
            environments = SingleEnvironments(spec, num_envs, first_seed)
        else:
            made = spec.make_vector(num_envs)
            environments = VectorEnvironments(made, first_seed, spec.info_metrics)
    else:
        num_envs = environment.num_envs
        environments = VectorEnvironments(environment, first_seed)
    lanes = [
        _Lane(
            lane_offset + index,
            None if episodes is None else share_of_lane(episodes, num_envs, index),
        )
        for index in range(num_envs)
    ]
    try:
        with connect(actors, token=token, timeout_s=_TIMEOUT_S, delta=delta) as client:
            _play(client, environments, lanes, on_episode)
    finally:
        environments.close()
    return [episode_return for lane in lanes for episode_return in lane.returns]


def _play(
    client: Client,
    environments: Environments,
    lanes: Sequence[_Lane],
    on_episode: Callable[[float], None] | None,
) -> None:
    """Send the ticks of all lanes together; episodes that ended begin anew in between.

    So a lane always has exactly one tick under way, which lets an on-policy run go in lock-step. A
    vector environment that begins an episode with a step of its own skips a tick there.
    """
    begun = environments.reset()
    changes: list[Request] = []
    while True:
        starts = [index for index in begun if not lanes[index].is_done]
        changes += [lanes[index].begin(begun[index]) for index in starts]
        if changes:
            replies = exchange_bodies(client, changes)
            for index, reply in zip(starts, replies[len(replies) - len(starts) :], strict=True):
                _take_options(environments, lanes[index], index, reply)
        if all(lane.is_done for lane in lanes):
            return
        playing = [index for index, lane in enumerate(lanes) if lane.is_open]
        replies = exchange_bodies(client, [lanes[index].tick() for index in playing])
        actions = {
            i: codec.decode(reply)["action"] for i, reply in zip(playing, replies, strict=True)
        }
        outcomes, begun = environments.step(actions)
        changes = []
        for index, outcome in outcomes.items():
            lanes[index].take(outcome)
            if outcome.ended:
                changes.append(lanes[index].end())
                if on_episode is not None:
                    on_episode(lanes[index].returns[-1])


def _take_options(environments: Environments, lane: _Lane, index: int, reply: bytes) -> None:
    """Take the options that the reply to a `start` has, if it has some."""
    if len(reply) <= len(_EMPTY):
        return
    options = codec.decode(reply).get("settings")
    if not isinstance(options, dict):
        return
    first = environments.set_reset_options(index, options)
    if first is not None:
        lane.see(first)


class _Lane:
    """The episodes of one environment, a session each."""

    def __init__(self, number: int, quota: int | None) -> None:
        self._number = number
        self._quota = quota
        self.returns: list[float] = []
        self.is_open = False  # whether an episode is being played
        self._message: dict[str, Any] = {}
        self._return = 0.0

    @property
    def is_done(self) -> bool:
        return self._quota is not None and len(self.returns) >= self._quota

    @property
    def _session(self) -> str:
        return f"{self._number}/{len(self.returns)}"

    def begin(self, observation: Nested) -> Request:
        self.is_open = True
        self._return = 0.0
        self.see(observation)
        return Request("start", self._session, _EMPTY)

    def see(self, observation: Nested) -> None:
        self._message = {"observation": observation}

    def tick(self) -> Request:
        return Request("tick", self._session, codec.encode(self._message))

    def take(self, outcome: StepOutcome) -> None:
        self._return += outcome.reward
        self._message = outcome._asdict()
        if not self._message["metrics"]:
            del self._message["metrics"]

    def end(self) -> Request:
        request = Request("end", self._session, codec.encode(self._message))
        self.is_open = False
        self.returns.append(self._return)
        return request


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    made = parser.add_mutually_exclusive_group(required=True)
    made.add_argument("--env", help="a Gymnasium id, or a class of yours: module:Class")
    made.add_argument("--make", help="how it is made, as JSON: EnvironmentSpec.to_json()")
    parser.add_argument("--address", required=True)
    parser.add_argument("--episodes", type=int, help="default: until the server is gone")
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lane-offset", type=int, default=0)
    parser.add_argument("--vector", action="store_true", help="one vector environment")
    parser.add_argument("--delta", action="store_true", help="delta encoding, over tcp")
    parser.add_argument("--json", action="store_true", help="print {'returns': […]} at the end")
    parser.add_argument("--parent", type=int, help="id of the process that must not be outlived")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Play as a process of its own: quiet when it is ended, one line on errors."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, exit_quietly)
    die_with_parent(options.parent)
    uplink.join("gamecore", options.lane_offset // max(1, options.num_envs))
    try:
        environment = options.env or EnvironmentSpec.from_json(options.make)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    game = partial(
        play,
        environment,
        options.address,
        episodes=options.episodes,
        num_envs=options.num_envs,
        seed=options.seed,
        lane_offset=options.lane_offset,
        token=os.environ.get("BRAY_TOKEN"),
        delta=options.delta,
        vector=options.vector,
    )
    try:
        if options.episodes is None:
            play_on(game)
            return 0
        returns = game()
    except BrayError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    if options.json:
        sys.stdout.write(json.dumps({"returns": returns}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
