"""The unit costs of a template, measured here: its own training for some seconds, on one core.

What is timed is what `bray train` does: the template's algorithm with all its parts, in turns in
one process. So any algorithm can be measured that is played by runners and trained by a trainer.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import torch

from bray.goal import Goal
from bray.planning.capacity import UnitCosts
from bray.run import Run
from bray.templates.template import Template
from bray.training.algorithm import load_algorithm
from bray_buffer import BufferConfig
from bray_buffer.shared.buffer_worker import BufferWorker
from bray_buffer.shared.socket_carrier import SegmentSender
from bray_core import metrics
from bray_core import runtime as core_runtime
from bray_core.errors import ConfigError
from bray_core.layout import Block, Layout

_TURNS = 3
"""Number of turns of playing and training that are measured at least."""
_WARM_UP = 0.25
"""Share of the time before it counts: torch's first calls are slow."""
_PATIENCE_S = 60.0
"""Seconds beside ten times those asked for, after which an untrained algorithm is given up."""
_TOKEN = "plan"
_NO_RUNNERS = "algorithm: it plays without runners, so its costs cannot be measured"
_REDUCING_US = 190.0
_REDUCING_US_PER_BYTE = 0.7e-3
"""gloo, two ranks of one machine: 0.19 ms for nothing, 4.9 ms for 6.8 MB. Not measured here."""
_PUBLISHED = 20
_RECEIVED_BYTES = 32 << 20
_MAX_PUSHES = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCosts:
    """Unit costs, and what they were computed from."""

    costs: UnitCosts
    frames: int
    """Number of frames played and trained on."""
    seconds: float
    """Seconds that this took."""

    @property
    def frames_per_s(self) -> float:
        """Frames/s of one process on one core."""
        return self.frames / self.seconds


def measure(template: Template, seconds: float = 10.0) -> MeasuredCosts:
    """Train a template for some seconds on one core and return what each unit took.

    Simulators that would play over the wire are stepped in this process instead. Where there is a
    GPU and the algorithm can train on it, that is measured too.

    Args:
        template: Template to measure.
        seconds: Seconds to measure for, usually 5 to 30; a quarter of that more is not counted, and
            it takes longer where a turn does. Short ones are noisy.

    Raises:
        ConfigError: its algorithm has no runners, or a setting is out of range.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds: expected more than 0, got {seconds}")
    if load_algorithm(template.algorithm).serves == "text":
        raise ConfigError(_NO_RUNNERS)
    if not hasattr(template.parts.trainer, "device"):
        return _measured(template, seconds)
    found = _measured(_on(template, "cpu"), seconds)  # players have no GPU
    if torch.cuda.is_available():
        gpu_us = _measured(_on(template, "cuda"), seconds).costs.training_us
        found = replace(found, costs=replace(found.costs, gpu_training_us=gpu_us))
    return found


def _on(template: Template, device: str) -> Template:
    parts = template.parts
    return replace(template, parts=replace(parts, trainer=replace(parts.trainer, device=device)))


def _measured(template: Template, seconds: float) -> MeasuredCosts:
    segments = getattr(template.parts.source, "num_envs", 1)  # those of all end together
    with tempfile.TemporaryDirectory() as folder, _one_core():
        run = _ObservedRun(core_runtime.init(folder, "plan"), seconds, segments)
        with run:
            _train(run, _in_process(template))
            costs = run.costs()
        return MeasuredCosts(costs=costs, frames=run.frames, seconds=run.seconds)


def _in_process(template: Template) -> Template:
    """Return a template whose simulators are stepped in this process."""
    parts = template.parts
    if not getattr(parts.source, "num_processes", 0):
        return template
    return replace(template, parts=replace(parts, source=replace(parts.source, num_processes=0)))


def _train(run: _ObservedRun, template: Template) -> None:
    """Train until the run has seen enough, with nothing printed and no evaluation."""
    never = Goal(episode_return=math.inf, evaluate_at=math.inf, max_frames=2**60)
    run.listen(run.look)
    try:
        with redirect_stdout(StringIO()):
            template.make().train(run, goal=never, seed=template.seed)
    except _EnoughError:
        return
    raise ConfigError(f"algorithm: {template.algorithm} ends by itself: it cannot be measured")


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, to one core."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)


class _EnoughError(Exception):
    """The run has seen enough."""


class _Timed:
    """A component of which the calls of one method are timed.

    Args:
        component: Component to time.
        method: Name of the method.
    """

    def __init__(self, component: Any, method: str) -> None:
        self._component = component
        self._method = method
        self.calls = 0
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._component, name)
        return self._time(found) if name == self._method else found

    def _time(self, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started
                self.calls += 1

        return timed


class _TimedTrainer(_Timed):
    """A trainer that takes turns with runners, as the algorithms do that can be measured."""

    def start(self) -> None:
        """Refuse to train beside what plays."""
        raise ConfigError(_NO_RUNNERS)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counters of a run at one moment."""

    at: float
    frames: float
    playing_s: float
    training_s: float
    turns: int
    steps: float
    pushed: float


class _ObservedRun(Run):
    """A local run that keeps hold of what an algorithm makes, and ends it after some seconds."""

    def __init__(
        self, launched: core_runtime.Runtime, seconds: float, segments_a_push: int
    ) -> None:
        super().__init__(launched)
        self._wanted_s = seconds
        self._segments_a_push = segments_a_push
        self._began = time.perf_counter()
        self._buffer: Any = None
        self._config: Any = None
        self._rollouts: _Timed | None = None
        self._trainer: _Timed | None = None
        self._is_lockstep = False
        self._frames = 0.0
        self._first: _Reading | None = None
        self._warm: _Reading | None = None
        self._last: _Reading | None = None

    def buffer(self, name: str, layout: Layout, config: Any, **options: Any) -> Any:
        """Keep the buffer."""
        self._buffer, self._config = super().buffer(name, layout, config, **options), config
        return self._buffer

    def rollouts(self, name: str, make: Any, **options: Any) -> Any:
        """Time the playing; on Ray some algorithms' players would wait for each version."""
        self._is_lockstep = options.get("lockstep", False)
        self._rollouts = _Timed(super().rollouts(name, make, **options), "collect")
        return self._rollouts

    def trainer(self, name: str, factory: Any, *args: Any, **options: Any) -> Any:
        """Time the training."""
        self._trainer = _TimedTrainer(super().trainer(name, factory, *args, **options), "run")
        return self._trainer

    def workers(self, name: str, factory: Any, *, num_workers: int = 1) -> Any:
        """Refuse workers: what they do is not known here."""
        raise ConfigError(_NO_RUNNERS)

    def look(self, figures: Mapping[str, float], _: Any) -> None:
        """Take a reading after each turn; raise `_EnoughError` when there are enough."""
        if self._rollouts is None or self._trainer is None or self._buffer is None:
            raise ConfigError(_NO_RUNNERS)
        self._frames = figures["frames"]
        if time.perf_counter() - self._began > _PATIENCE_S + 10 * self._wanted_s:
            raise ConfigError(
                f"algorithm: has trained {self._trainer.calls} times, expected more than {_TURNS}: "
                "give it more --seconds, or a shorter warm-up"
            )
        if not self._trainer.calls:
            return
        now = self._read()
        self._first = self._first or now
        if now.at - self._first.at < _WARM_UP * self._wanted_s:
            return
        self._warm = self._warm or now
        is_long = now.at - self._warm.at >= self._wanted_s
        if is_long and now.turns - self._warm.turns >= _TURNS:
            self._last = now
            raise _EnoughError

    def _read(self) -> _Reading:
        assert self._rollouts is not None
        assert self._trainer is not None
        return _Reading(
            time.perf_counter(),
            self._frames,
            self._rollouts.seconds,
            self._trainer.seconds,
            self._trainer.calls,
            self._trainer.progress()["steps"],
            self._buffer.stats()["pushed"],
        )

    @property
    def frames(self) -> int:
        """Number of frames played while it counted."""
        assert self._warm is not None
        assert self._last is not None
        return int(self._last.frames - self._warm.frames)

    @property
    def seconds(self) -> float:
        """Seconds for which it counted."""
        assert self._warm is not None
        assert self._last is not None
        return self._last.at - self._warm.at

    def costs(self) -> UnitCosts:
        """Return the costs, a frame each; call it after `_EnoughError`."""
        warm, last = self._warm, self._last
        assert warm is not None
        assert last is not None
        frames = last.frames - warm.frames
        playing_us = 1e6 * (last.playing_s - warm.playing_s) / frames
        utilisation = self._mean("actor/utilisation")
        if math.isnan(utilisation):  # rollouts whose players are no runners, as a search is not
            raise ConfigError(_NO_RUNNERS)
        environment_us = playing_us * utilisation
        forward_us = 1e6 * self._mean("model/forward_s") / self._mean("model/batch_rows")
        inference_us = min(forward_us, playing_us - environment_us)
        segments = (last.pushed - warm.pushed) / frames
        weights_bytes, adopting_us = self._policy()
        return UnitCosts(
            environment_us=environment_us,
            inference_us=inference_us,
            recording_us=playing_us - environment_us - inference_us,
            training_us=1e6 * (last.training_s - warm.training_s) / frames,
            segment_bytes=segments * self._buffer.layout.nbytes,
            receiving_us=segments
            * receiving_us(self._buffer.layout, self._config, self._segments_a_push),
            weights_bytes=weights_bytes,
            adopting_us=adopting_us,
            frames_per_step=frames / max(1.0, last.steps - warm.steps),
            reducing_us=_REDUCING_US + _REDUCING_US_PER_BYTE * weights_bytes,
            lockstep=self._is_lockstep,
        )

    def _mean(self, name: str) -> float:
        return metrics.query(name, self.seconds).mean

    def _policy(self) -> tuple[float, float]:
        """Return the bytes of a version of all models, and the µs that taking one over takes."""
        weights = {name: model.weights()[1] for name, model in self.models.items()}
        nbytes = sum(leaf.nbytes for tree in weights.values() for leaf in tree.values())
        started = time.perf_counter()
        for _ in range(_PUBLISHED):
            for name, model in self.models.items():
                model.publish(weights[name])
        return nbytes, 1e6 * (time.perf_counter() - started) / _PUBLISHED


def receiving_us(layout: Layout, config: Any, segments: int) -> float:
    """Return the CPU time that a buffer's process takes for a segment from another node.

    The segments come over a real connection; what sending them takes is left out.

    Args:
        layout: Layout of a segment.
        config: Config of the buffer.
        segments: Number of segments of a push.
    """
    if isinstance(config, BufferConfig):
        config = replace(config, when_full="drop_oldest")  # nobody pops
    rows = layout.empty(segments)
    views: Any = layout.views(rows)
    if "length" in views:
        views["length"][:] = layout.spec["reward"].shape[0]
    pushes = max(4, min(_MAX_PUSHES, _RECEIVED_BYTES // rows.nbytes))
    worker = BufferWorker(layout, config, _TOKEN, 0, "127.0.0.1")
    try:
        sender = SegmentSender(worker.listen(), _TOKEN)
        _send(sender, rows, 2)  # the memory is touched for the first time
        before = time.process_time() - time.thread_time()
        _send(sender, rows, pushes)
        spent_s = time.process_time() - time.thread_time() - before
        sender.close()
    finally:
        worker.close()
    return 1e6 * spent_s / (pushes * segments)


def _send(sender: SegmentSender, rows: Block, pushes: int) -> None:
    for _ in range(pushes):
        sender.send(rows, None)
        sender.settle(0)
