"""The subcommand `bray play`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.cli import Command

if TYPE_CHECKING:
    from bray_actor.environments.spec import EnvironmentSpec

DEFAULT_ADDRESS = "tcp://127.0.0.1:7300"


def _add_play(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "environment",
        help="a Gymnasium id, a short name such as cartpole, or a trial: trials/walker",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="how it is made, such as kwargs.is_slippery=false or wrappers=[my:Wrapper]",
    )
    parser.add_argument("--address", default=DEFAULT_ADDRESS, help="tcp://… or http://… of actors")
    parser.add_argument("--episodes", type=int, default=100, help="episodes to play")
    parser.add_argument("--num-envs", type=int, default=8, help="environments side by side")
    parser.add_argument("--seed", type=int, default=0, help="of the environments")
    parser.add_argument("--vector", action="store_true", help="step them as one vector environment")
    parser.add_argument("--delta", action="store_true", help="send differences of ticks, over tcp")
    parser.add_argument(
        "--token-env", default="BRAY_TOKEN", help="environment variable that holds the token"
    )


def _play(options: argparse.Namespace) -> int:
    from bray_actor.gamecores.gamecore import play
    from bray_core.config import with_overrides
    from bray_core.errors import BrayError, ServiceError

    spec = with_overrides(_described(options.environment), options.overrides)
    try:
        returns = play(
            spec,
            options.address,
            episodes=options.episodes,
            num_envs=options.num_envs,
            seed=options.seed,
            token=os.environ.get(options.token_env),
            delta=options.delta,
            vector=options.vector,
        )
    except ServiceError as error:
        if error.code == "unreachable":
            raise BrayError(
                f"{error.message}: start a server with `bray serve TRIAL` or name another --address"
            ) from error
        raise
    mean = sum(returns) / len(returns)
    played = f"{len(returns)} episode{'s'[: len(returns) != 1]}"
    sys.stdout.write(
        f"{spec}: mean return {mean:.1f} over {played} "
        f"(lowest {min(returns):.1f}, highest {max(returns):.1f})\n"
    )
    return 0


def _described(environment: str) -> EnvironmentSpec:
    """Return how an environment is made; of a trial, as the trial makes it.

    Raises:
        ConfigError: it is no environment of Gymnasium, or the trial plays none.
    """
    from dataclasses import fields

    from bray_actor.environments.spec import EnvironmentSpec
    from bray_core.errors import ConfigError
    from bray_core.files.trial_folders import CONFIG
    from bray_core.settings.settings_build import build
    from bray_core.settings.settings_tree import Value
    from bray_core.trials.played_source import played_source

    trial = Path(environment)
    if environment.startswith(("bray:", "open_spiel:")):
        raise ConfigError(
            f"environment: {environment} is a game of several agents, which `bray play` does not "
            "seat: `bray watch TRIAL` plays it with a trial's policies"
        )
    if os.sep not in environment or not (trial / CONFIG).is_file():
        return EnvironmentSpec(environment=environment)
    source = played_source(trial)
    if source is None:
        raise ConfigError(
            f"environment: {trial} was not trained in a Gymnasium environment of its own: name "
            f"one, or let the simulator call `bray serve`; `bray watch {trial}` plays games of "
            "several agents"
        )
    known = {one.name for one in fields(EnvironmentSpec)}
    written = {name: child for name, child in source.value.items() if name in known}
    return build(Value(written, source.place), EnvironmentSpec)


play = Command("play", "let an environment call actors that listen somewhere", _add_play, _play)
