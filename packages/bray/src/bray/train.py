"""`bray train`: build the loop of a template, watch it, evaluate, export, say what comes next."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from bray import wire
from bray.environments import Spaces
from bray.evaluation import evaluate_latest, snapshot
from bray.farewell import farewell
from bray.launch import Launch
from bray.progress import Display, display
from bray.run import Run
from bray.sinks import Sinks
from bray.template import Template
from bray_actor import segment_spec
from bray_buffer import BufferConfig
from bray_core.cli import check_interrupted
from bray_core.config import to_mapping
from bray_core.experiment import write_atomic
from bray_core.layout import Layout
from bray_model import ExportReport, ModelConfig

_LOCKSTEP_WAIT_US = 10_000_000
"""How long a batch waits for a late lane: longer than a gamecore takes to start or be replaced."""
_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run ended."""

    reached: bool
    evaluation_return: float
    episode_returns: tuple[float, ...]
    frames: int
    frames_per_s: float
    version: int
    train_s: float


def train(template: Template, launch: Launch) -> int:
    """Train until the goal is reached or the frames are used up; return the exit code.

    The trial's folder then holds checkpoints, versions, TensorBoard events, an ONNX export that
    has been compared with torch, and `result.json`.

    Raises:
        ExportError: the export's outputs differ from torch's.
    """
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    title = f"{template.source.environment} by {template.recipe.upper()} ({launch.runtime})"
    config = {**to_mapping(template), "seed": launch.seed}
    with launch.open(config) as run, display(title) as view:
        loop = Loop(run, template, launch.seed, view)
        result = loop.until_done()
        report = loop.export(result.version)
        trial = run.experiment.path
        write_atomic(trial / "result.json", json.dumps(asdict(result), indent=1).encode())
        view.say(report.table())
        view.say(farewell(template, trial, result))
    return 0 if result.reached else 1


class Loop:
    """Model, buffer, trainer, actors and gamecores of one launch, joined as DESIGN §1 draws it."""

    def __init__(self, run: Run, template: Template, seed: int, view: Display) -> None:
        self._run = run
        self._template = template
        self._seed = seed
        self._view = view
        self._sinks = run.keep(Sinks(run.experiment.launch))
        source = template.source
        self._spaces = spaces = Spaces.of(source.environment)
        self._module = wire.network(template.model, spaces, seed)
        lanes = source.num_envs // template.actor.num_workers
        self._model = run.model(
            "policy",
            self._module,
            spaces.example,
            ModelConfig(max_batch_size=lanes, max_wait_us=_LOCKSTEP_WAIT_US, pad_to=(lanes,)),
        )
        self._buffer = run.buffer(
            "experience",
            Layout(segment_spec(spaces.observation, spaces.action, template.agent.segment_length)),
            BufferConfig(
                batch_steps=template.trainer.steps_per_replay,
                capacity=template.buffer.capacity,
                when_full="block",
            ),
        )
        self._policy = self._model, self._module, spaces.example
        parts = template, seed, self._model, self._buffer
        self._trainer = run.trainer(
            "ppo", partial(wire.make_trainer, *parts, spaces, run.experiment.checkpoints)
        )
        self._actors = run.actor(
            "actor",
            partial(wire.make_actors, *parts, run.experiment.path / "episodes"),
            num_workers=template.actor.num_workers,
            port=template.actor.port,
        )
        self._gamecores = run.gamecores(
            source.environment,
            lambda: self._actors.worker_addresses,
            num_processes=source.num_processes,
            envs_per_process=source.envs_per_process,
            seed=seed,
        )

    def until_done(self) -> Result:
        """Train, evaluating at each pause, until the goal is reached or the frames are used up."""
        goal = self._template.goal
        self._say_what_resumes()
        self._gamecores.start()
        started = time.monotonic()
        self._trainer.start()  # resumes, so that its counters are the trial's
        frames_before = self._trainer.progress()["frames"]
        while True:
            self._train_until_pause(started, frames_before)
            returns = self._evaluate()
            progress = self._trainer.progress()
            mean = float(np.mean(returns))
            if mean >= goal.episode_return or progress["frames"] >= goal.max_frames:
                break
            self._view.say(f"evaluation: mean return {mean:.1f}: training goes on")
            self._trainer.start()
        train_s = time.monotonic() - started
        self._gamecores.stop()
        self._trainer.stop()
        return Result(
            reached=mean >= goal.episode_return,
            evaluation_return=mean,
            episode_returns=tuple(returns),
            frames=int(progress["frames"]),
            frames_per_s=(progress["frames"] - frames_before) / train_s,
            version=self._model.version,
            train_s=train_s,
        )

    def export(self, version: int) -> ExportReport:
        """Export the policy with the actor that serves it; raises ExportError where it differs."""
        folder = self._run.experiment.models / "policy" / "onnx" / str(version)
        actor = {"name": "policy", "config": {"deterministic": True}}
        with snapshot(*self._policy) as model:
            return model.export(folder, actor=actor)

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
            self._sinks.write(int(progress["frames"]), self._run.metrics())

    def _evaluate(self) -> list[float]:
        goal, source = self._template.goal, self._template.source
        self._view.say(f"evaluating over {goal.evaluation_episodes} episodes")
        return evaluate_latest(*self._policy, source.environment, goal, seed=self._seed)
