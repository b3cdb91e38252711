"""`bray watch`: see a trained policy play, in a window or as a video."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bray_core.command import Command


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
    parser.add_argument("--policy", help="name of the policy, where a trial has several")
    parser.add_argument(
        "--sample", action="store_true", help="draw actions instead of taking the most likely ones"
    )


def _watch(options: argparse.Namespace) -> int:
    from bray.trained.agent import TrainedAgent

    deterministic = False if options.sample else None
    with TrainedAgent(options.trial, policy=options.policy, deterministic=deterministic) as agent:
        played = agent.watch(
            options.episodes, save=options.save, environment=options.env, seed=options.seed
        )
    sys.stdout.write(f"{played}\n")
    return 0


watch = Command("watch", "see a trained policy play", _add_watch, _watch)
