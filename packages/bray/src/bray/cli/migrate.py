"""`bray migrate`: a model of another library becomes a trial."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bray_core.command import Command
from bray_core.files.trial_folders import NAME_OR_FOLDER, PROJECT


def _add_migrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="what model.save(…) of Stable-Baselines3 wrote")
    parser.add_argument("env", help="what it was trained in, such as CartPole-v1")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings of the run, such as source.wrappers=[my_game:Scaled]",
    )
    parser.add_argument("--project", type=Path, default=PROJECT, help="folder of the trials")
    parser.add_argument("--trial", help=f"{NAME_OR_FOLDER}; by default as bray train")
    parser.add_argument(
        "--episodes", type=int, default=0, help="episodes to play with it at once; by default none"
    )


def _migrate(options: argparse.Namespace) -> int:
    from bray.migration.migrate import migrate_sb3
    from bray.trained.agent import TrainedAgent

    made = migrate_sb3(
        options.file,
        options.env,
        project=options.project,
        trial=options.trial,
        settings=options.overrides,
    )
    lines = [f"{options.file}: a policy of {made.algorithm} on {options.env}"]
    lines += [f"begins anew: {words}" for words in made.left_out]
    if made.was_normalized:
        lines.append(
            "trained behind VecNormalize, whose statistics lie in another file: give a wrapper "
            "that applies them (source.wrappers=[…]), or it plays what it was not trained for"
        )
    lines.append(f"wrote {made.trial}; its export: {made.export.path}")
    if options.episodes:
        with TrainedAgent(made.trial) as agent:
            lines.append(f"plays: {agent.evaluate(options.episodes)}")
    lines += [
        f"watch it:     bray watch {made.trial}",
        f"serve it:     bray serve {made.trial}",
        f"train it on:  bray train {made.trial}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


migrate = Command("migrate", "take over a Stable-Baselines3 model", _add_migrate, _migrate)
