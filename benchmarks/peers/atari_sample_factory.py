"""Sample Factory's APPO on an ALE game. One JSON line.

Its settings for Atari, but asynchronous and double-buffered with one pass over each sample, as its
documentation has it for throughput. The games are its own too.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from typing import Any

import ale_py
import torch
from atari_run import Run
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import ATARI_ENVS, make_atari_env

NUM_WORKERS = 2
NUM_ENVS = 8  # a worker's, in two halves
ROLLOUT = 128
BATCH = 256


def make(name: str, *arguments: Any, **options: Any) -> Any:
    """Return one game; in each process, importing ale-py has told Gymnasium of its games."""
    assert ale_py.__version__
    return make_atari_env(name, *arguments, **options)


def settings(run: Run, directory: str) -> Any:
    """Return Sample Factory's configuration of a run."""
    wanted = f"{run.game_class}NoFrameskip-v4"
    names = [spec.name for spec in ATARI_ENVS if spec.env_id == wanted]
    if not names:
        raise SystemExit(f"--game: expected a game that Sample Factory knows, got {run.game}")
    register_env(names[0], make)
    arguments = [f"--env={names[0]}", "--experiment=atari", f"--train_dir={directory}"]
    parser, _ = parse_sf_args([*arguments, "--algo=APPO"])
    atari_override_defaults(names[0], parser)
    parser.set_defaults(
        device="cpu",
        seed=run.seed,
        async_rl=True,
        num_workers=NUM_WORKERS,
        num_envs_per_worker=NUM_ENVS,
        worker_num_splits=2,
        rollout=ROLLOUT,
        batch_size=BATCH,
        num_epochs=run.epochs,
        normalize_input=False,  # as its settings for EnvPool have it: quicker
        decorrelate_envs_on_one_worker=False,  # no-op starts do; minutes of start-up otherwise
        summaries_use_frameskip=False,  # its frames are decisions then
        train_for_env_steps=10_000_000_000,
        save_every_sec=1_000_000,
    )
    return parse_full_cfg(parser, [*arguments, "--algo=APPO"])


class Watch(AlgoObserver):
    """Counts games and updates, and ends the run with its figures."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_over = False

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Note one training step; frames are those that the learner has had."""
        frames = runner.env_steps.get(0, 0)
        if frames and not self.is_over and self.run.updated(frames, frames * self.run.epochs):
            self.is_over = True
            self.run.finish(
                num_workers=NUM_WORKERS,
                num_envs=NUM_WORKERS * NUM_ENVS,
                num_steps=ROLLOUT,
                batch=BATCH,
                splits=2,
                torch=torch.__version__,
                games="sf_examples.atari",
            )
            runner.cfg.train_for_env_steps = 0  # ends it

    def on_episode(self, _: Runner, message: dict[str, Any], policy: int) -> None:
        """Note a whole game: a lost life that ends an episode has no such score."""
        score = message[EPISODIC].get("RecordEpisodeStatistics_reward")
        self.run.episodes([] if score is None else [score])


def main() -> None:
    """Train until the run is over."""
    run = Run("sample_factory", version("sample-factory"), "APPO", epochs=1)
    with tempfile.TemporaryDirectory() as directory:
        _, runner = make_runner(settings(run, directory))
        watch = Watch(run)
        runner.register_observer(watch)
        runner.register_episodic_stats_handler(watch.on_episode)
        runner.init()
        runner.run()


if __name__ == "__main__":  # its processes import this file
    main()
