"""`bray watch`: see a trained policy play, in a window or as a video."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.command import Command
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG
from bray_core.settings.ranges import Seed, check_value

if TYPE_CHECKING:
    from bray.templates.template import Template
    from bray.trained.watched_games import PlayedGames


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trial", type=Path, help="folder of a trial or an export, or agent.bray")
    parser.add_argument(
        "--save",
        type=Path,
        help="the video: .gif, .webp, or .mp4 where ffmpeg is installed; by default a window, and "
        "watch.gif in the trial where there is no screen",
    )
    parser.add_argument("--episodes", type=int, default=1, help="episodes to play")
    parser.add_argument("--env", help="what is played; by default what it was trained in")
    parser.add_argument("--seed", type=int, default=1, help="of the environment")
    parser.add_argument(
        "--policy", help="name of the policy that plays alone, where a trial has several"
    )
    parser.add_argument("--source", help="name of the source of games, where a trial has several")
    parser.add_argument(
        "--against",
        help="who plays the other sides of a match: random, search, an agent of the template, "
        "module:function, or a trial; by default the trial's own policies",
    )
    parser.add_argument(
        "--sample", action="store_true", help="draw actions instead of taking the most likely ones"
    )


def _watch(options: argparse.Namespace) -> int:
    from bray.trained.agent import TrainedAgent

    check_value("seed", options.seed, Seed)
    if options.policy is None and options.env is None and (options.trial / CONFIG).is_file():
        from bray.templates.loading import load

        games = _watch_games(options, load(str(options.trial)))
        if games is not None:
            sys.stdout.write(f"{games}\n")
            return 0
    for name in ("source", "against"):
        if (told := getattr(options, name)) is not None:
            raise ConfigError(
                f"--{name}: expected with a trial of games or matches, without --policy and --env, "
                f"got {told!r}"
            )
    deterministic = False if options.sample else None
    with TrainedAgent(options.trial, policy=options.policy, deterministic=deterministic) as agent:
        played = agent.watch(
            options.episodes, save=options.save, environment=options.env, seed=options.seed
        )
    sys.stdout.write(f"{played}\n")
    return 0


def _watch_games(options: argparse.Namespace, template: Template) -> PlayedGames | None:
    """Let the policies of a trial play with each other; None: each plays alone."""
    told = {
        "episodes": options.episodes,
        "seed": options.seed,
        "save": options.save,
        "against": options.against,
        "sample": options.sample,
        "say": lambda text: sys.stdout.write(f"{text}\n\n"),
    }
    if template.algorithm == "alphazero" and options.source is None:
        from bray.trained.watched_searches import watch_searches

        return watch_searches(options.trial, template.parts, **told)
    if template.composition is None:
        return None
    from bray.trained.watched_games import games_of, watch_games

    source = games_of(template.composition, options.source)
    if source is None:
        return None
    return watch_games(options.trial, template.composition, source, **told)


watch = Command("watch", "see a trained policy play", _add_watch, _watch)
