"""Makes a trial of each algorithm with the code at hand: `python tests/old_trials/make.py FOLDER`.

`tests/test_old_trials.py` resumes what was kept of earlier code. A format that changes gets a
folder of its own here, made by the last code of the format before it.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.sources import demonstrations
from bray.templates.loading import compose
from bray_core.protocols import Answer

ON_POLICY = "num_envs=2 hidden=[4] segment_length=8"
PPO = f"{ON_POLICY} steps_per_replay=32 epochs=2 minibatch_size=16"
OFF_POLICY = (
    "num_envs=2 hidden=[4] capacity=64 warmup_frames=32 batch_size=8 "
    "steps_per_collect=8 replays_per_collect=2"
)
OFFLINE = "hidden=[4] batch_size=8 evaluate_every=2 max_steps=4"
QMIX = (
    "hidden=[4] num_envs=2 capacity=32 warmup_frames=8 batch_size=8 "
    "steps_per_collect=4 replays_per_collect=2"
)
ALPHAZERO = (
    "hidden=[4] num_games=2 num_simulations=2 play_simulations=2 minibatch_size=8 "
    "minibatches=1 capacity=32 moves_per_round=4 evaluate_every=20"
)
ADDITION = "bray.text.tasks.addition:Addition"

TRIALS = {
    "a2c": ("a2c", "CartPole-v1", ON_POLICY),
    "alphazero": ("alphazero", "tic-tac-toe", ALPHAZERO),
    "appo": ("appo", "CartPole-v1", f"{ON_POLICY} replays_per_collect=2 minibatches=2"),
    "bc": ("bc", "CartPole-v1", OFFLINE),
    "cql-choice": ("cql", "CartPole-v1", OFFLINE),
    "cql": (
        "cql",
        "Pendulum-v1",
        f"{OFFLINE} demonstrations=demonstrations/pendulum num_sampled=2",
    ),
    "crossq": ("crossq", "Pendulum-v1", f"{OFF_POLICY} critic_hidden=[4]"),
    "dpo": ("dpo", ADDITION, "batch_size=8"),
    "dqn": ("dqn", "CartPole-v1", f"{OFF_POLICY} prioritized=true"),
    "dqn-rainbow": ("dqn", "CartPole-v1", f"{OFF_POLICY} variant=rainbow num_atoms=11"),
    "es": ("es", "CartPole-v1", "hidden=[4] population=4"),
    "grpo": (
        "grpo",
        ADDITION,
        "prompts_per_step=2 group_size=4 minibatches=2 least_informative=0",
    ),
    "impala": ("impala", "CartPole-v1", f"{ON_POLICY} replays_per_collect=2"),
    "iql-choice": ("iql", "CartPole-v1", OFFLINE),
    "iql": ("iql", "Pendulum-v1", f"{OFFLINE} demonstrations=demonstrations/pendulum"),
    "mappo": ("mappo", "two-step", "hidden=[4] num_envs=2 steps_per_replay=4 epochs=1"),
    "ppo": ("ppo", "CartPole-v1", PPO),
    "ppo-memory": ("ppo", "CartPole-v1", f"{PPO} memory_size=2 anneal_frames=1000"),
    "pqn": ("pqn", "CartPole-v1", PPO),
    "qmix": ("qmix", "two-step", QMIX),
    "rl_imitation": ("rl_imitation", "CartPole-v1", f"{PPO} cloning_steps=2"),
    "sac": ("sac", "Pendulum-v1", OFF_POLICY),
    "sac-choice": ("sac", "CartPole-v1", OFF_POLICY),
    "sft": ("sft", ADDITION, "batch_size=8"),
    "td3": ("td3", "Pendulum-v1", OFF_POLICY),
    "td3_bc": ("td3_bc", "Pendulum-v1", f"{OFFLINE} demonstrations=demonstrations/pendulum"),
    "tqc": ("tqc", "Pendulum-v1", f"{OFF_POLICY} num_critics=2 num_quantiles=3"),
}
"""Algorithm, task and settings: as small as they go."""
DEMONSTRATIONS = "demonstrations"
SWINGS = f"{DEMONSTRATIONS}/pendulum"
MAX_FRAMES = 64
_KEPT = ("buffers/**/*", "checkpoints/*", "models/**/versions/*", "launches/*/*.jsonl", "*.json")


class _Demonstrator:
    """Pushes mostly to the side to which the pole falls."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        push = int(observation[2] + 0.5 * observation[3] > 0.06)
        logits = np.where(np.arange(2) == push, 1.0, 0.0).astype(np.float32)
        return Answer({"logits": logits, "value": np.float32(0)}, 0)


class _Swinger:
    """Pushes a pendulum on in the direction in which it moves."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        mean, log_std = np.sign(observation[2:]).astype(np.float32), np.zeros(1, np.float32)
        return Answer({"mean": mean, "log_std": log_std, "value": np.float32(0)}, 0)


def make(name: str, *, trial: str | None = None, seed: int = 1, times: int = 1) -> None:
    """Make one trial in the working directory, or go on with it for as much again.

    Args:
        name: Row of `TRIALS`.
        trial: Name of the trial; without, that of the row.
        seed: Seed of the run.
        times: Launches of this trial so far, this one included: budgets count all of them.
    """
    train(TRIALS[name], trial or name, seed=seed, times=times)


def train(row: tuple[str, str, str], trial: str, *more: str, seed: int = 1, times: int = 1) -> None:
    """Train a row such as those of `TRIALS` in the working directory; see `make`.

    Args:
        row: Algorithm, task and settings.
        trial: Name of the trial.
        more: Other settings.
        seed: Seed of the run.
        times: Launches of this trial so far, this one included.
    """
    algorithm, task, settings = row
    written = [*settings.split(), *more, "goal.episode_return=1e6", "goal.evaluate_at=1e6"]
    written += ["goal.evaluation_episodes=2", "keep.checkpoints=1", "keep.versions=2"]
    written += [f"goal.max_frames={times * MAX_FRAMES}", f"seed={seed}"]
    template = compose(algorithm, task, written)
    config = template.parts.trainer
    if hasattr(config, "max_steps"):
        config = replace(config, max_steps=times * config.max_steps)
    template = replace(template, parts=replace(template.parts, trainer=config))
    launch = Launch(project=Path(), trial=trial)
    run_template(template, launch.open, completed_goal(template))


def make_demonstrations() -> None:
    """Record what recipes that imitate learn from, in the working directory."""
    folder = Path(DEMONSTRATIONS)
    folder.mkdir()
    demonstrations.record(folder, "CartPole-v1", _Demonstrator(), episodes=2, seed=1)
    demonstrations.record(SWINGS, "Pendulum-v1", _Swinger(), episodes=1, seed=1)


def _files(trial: Path) -> Iterator[Path]:
    """Yield what a trial goes on from, without what names the machine or can be made again."""
    for record in trial.glob("launches/*/launch.json"):
        content = json.loads(record.read_bytes())
        content |= {"command": ["bray"], "folder": "", "host": "", "platform": "", "packages": {}}
        record.write_text(json.dumps(content))
        yield record
    yield trial / "config.yaml"
    for pattern in _KEPT:
        yield from trial.glob(pattern)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def pack(name: str, files: list[Path], folder: Path) -> None:
    """Put a trial's files into `<name>.tar.xz`."""
    with tarfile.open(folder / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for file in sorted(set(files)):
            if file.is_file():
                archive.add(file, filter=_anonymous)


def main(folder: Path) -> None:
    """Make all in a folder; the trials themselves stay in `<folder>/made`."""
    made = folder / "made"
    made.mkdir(parents=True)
    os.chdir(made)
    make_demonstrations()
    pack(DEMONSTRATIONS, list(Path(DEMONSTRATIONS).rglob("*")), Path(".."))
    for name in TRIALS:
        make(name)
        pack(name, list(_files(Path(name))), Path(".."))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
