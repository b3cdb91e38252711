"""PPO over the wire: the loop of gamecore processes, built, watched and evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from bray.goal import Outcome, conclude
from bray.retention import offer_best
from bray.run import ActorFactory, Run
from bray.sources.environments import Spaces
from bray.templates.template import Template
from bray.training import wire
from bray.training.compute import chosen
from bray.training.evaluation import evaluate_latest
from bray.training.on_policy import segment_layout
from bray.training.progress import Display, display
from bray_buffer import BufferConfig
from bray_core.cli import check_interrupted
from bray_model import ModelConfig

_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class WireOutcome(Outcome):
    """How a run over the wire ended."""

    episode_returns: tuple[float, ...]
    """Of the last evaluation."""
    frames_per_s: float


def train_over_the_wire(run: Run, template: Template, seed: int) -> WireOutcome:
    """Train until the goal is reached or its frames, those of the whole trial, are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        template: of PPO, with gamecore processes.
        seed: of network, environments and draws.
    """
    with display(f"PPO on {template.environment} over the wire") as view:
        return conclude(run.experiment.path, Loop(run, template, seed, view).until_done())


class Loop:
    """Model, buffer, trainer, actors and gamecores of one launch, joined as DESIGN §1 draws it."""

    def __init__(self, run: Run, template: Template, seed: int, view: Display) -> None:
        spaces = Spaces.of(template.environment)
        config = chosen(template.settings, is_image=spaces.is_image, is_local=run.is_local)
        if run.is_local:
            torch.set_num_threads(config.trainer_threads)
            config = replace(config, num_workers=1)  # one server answers all gamecores
        template, processes = replace(template, settings=config), template.wire.num_processes
        self._run = run
        self._template = template
        self._seed = seed
        self._view = view
        self._module = wire.network(config, spaces, seed)
        lanes = processes * config.num_envs // config.num_workers
        self._model = run.model(
            "policy",
            self._module,
            spaces.example,
            ModelConfig(max_batch_size=lanes, precision=config.precision),
        )
        self._buffer = run.buffer(
            "experience",
            segment_layout(spaces, config.segment_length, 0),
            BufferConfig(
                batch_steps=config.steps_per_replay,
                capacity=config.steps_per_replay,  # holds all, be each segment one step
                when_full="block",
            ),
        )
        self._policy = self._model, self._module, spaces.example
        parts = template, seed, self._model, self._buffer
        self._trainer = run.trainer(
            "ppo", partial(wire.make_trainer, *parts, spaces, run.experiment.checkpoints)
        )
        make_actors: Callable[[], ActorFactory] = partial(
            wire.make_actors, *parts, run.experiment.path / "episodes"
        )
        if not run.is_local:
            from bray.remote import with_worker_index

            make_actors = with_worker_index(make_actors)
        self._actors = run.actor(
            "actor",
            make_actors,
            num_workers=config.num_workers,
            port=template.wire.port,
        )
        self._gamecores = run.gamecores(
            template.environment,
            lambda: self._actors.worker_addresses,
            num_processes=processes,
            envs_per_process=config.num_envs,
            seed=seed,
        )

    def until_done(self) -> WireOutcome:
        """Train, evaluating at each pause, until the goal is reached or the frames are used up."""
        goal = self._template.goal
        self._say_what_resumes()
        self._gamecores.start()
        started = time.monotonic()
        self._trainer.start()  # resumes, so that its counters are the trial's
        frames_before = self._trainer.progress()["frames"]
        while True:
            self._train_until_pause(started, frames_before)
            progress = self._trainer.progress()
            version = int(self._model.checkpoint().stem)
            returns = self._evaluate()
            mean = float(np.mean(returns))
            offer_best(self._run, self._model, version, mean, int(progress["frames"]))
            if goal.is_reached(mean) or progress["frames"] >= goal.budget:
                break
            self._view.say(f"evaluation: mean return {mean:.1f}: training goes on")
            self._trainer.start()
        seconds = time.monotonic() - started
        self._gamecores.stop()
        self._trainer.stop()
        return WireOutcome(
            reached=goal.is_reached(mean),
            evaluation_return=mean,
            episode_returns=tuple(returns),
            frames=int(progress["frames"]),
            frames_per_s=(progress["frames"] - frames_before) / seconds,
            version=self._model.version,
            seconds=seconds,
        )

    def _say_what_resumes(self) -> None:
        if self._model.version:
            path = self._run.experiment.path
            self._view.say(
                f"resuming {path} from policy version {self._model.version}; "
                "choose another --trial to start afresh"
            )

    def _train_until_pause(self, started: float, frames_before: float) -> None:
        paused = False
        while not paused:
            paused = self._trainer.wait(_POLL_S)
            check_interrupted()
            self._gamecores.check()
            progress = self._trainer.progress()
            elapsed_s = time.monotonic() - started
            figures = {
                "elapsed_s": elapsed_s,
                "frames_per_s": (progress["frames"] - frames_before) / elapsed_s,
                **progress,
            }
            self._view.update(figures, now=paused)

    def _evaluate(self) -> list[float]:
        goal = self._template.goal
        self._view.say(f"evaluating over {goal.evaluation_episodes} episodes")
        return evaluate_latest(*self._policy, self._template.environment, goal, seed=self._seed)
