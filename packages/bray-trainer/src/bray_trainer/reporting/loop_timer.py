"""How the time of the training loop divides over its phases."""

from __future__ import annotations

import time

import torch

from bray_core import metrics

_WORDS = {
    "wait": "waiting for data",
    "handle": "making batches of replays",
    "backward": "forward and backward",
    "optimizer": "the optimiser",
    "publish": "publishing",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
}
_DECAY = 0.95
"""Factor of the sums behind the shares after each replay: they look back about 20 replays."""


class LoopTimer:
    """Adds up the seconds of each phase, and records them after each replay.

    Args:
        device: Device of the module. The time of a GPU is measured by events, which stall nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._sums = dict.fromkeys(_WORDS, 0.0)
        self._finished: float | None = None
        """Time at which the last replay was done."""

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds of a phase."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def on_host(self, phase: str) -> _HostTimer:
        """Return a context whose wall time is added."""
        return _HostTimer(self, phase)

    def on_device(self, phase: str) -> _HostTimer | _DeviceTimer:
        """Return a context whose time on the device is added."""
        return (
            _DeviceTimer(self, phase, self._device)
            if self._device.type == "cuda"
            else _HostTimer(self, phase)
        )

    def add_events(self, phase: str, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        """Add the time between two events, which may be yet to come."""
        self._events.append((phase, start, end))

    def finish_replay(self) -> None:
        """Record the phases since the last call; what is still to come counts in the next."""
        events, self._events = self._events, []
        for event in events:
            self._add_events(*event)
        seconds, self._seconds = self._seconds, {}
        for phase in _WORDS:
            self._sums[phase] = _DECAY * self._sums[phase] + seconds.get(phase, 0.0)
        _record(seconds)
        busy_s = sum(spent for phase, spent in seconds.items() if phase != "wait")
        now = time.perf_counter()
        if self._finished is not None and now > self._finished:
            metrics.record("trainer/utilisation", min(1.0, busy_s / (now - self._finished)))
        self._finished = now

    def _add_events(self, phase: str, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        # An event that is yet to come is left for the next replay: nothing waits.
        if end.query():  # type: ignore[no-untyped-call]
            self.add(phase, start.elapsed_time(end) / 1000)
        else:
            self._events.append((phase, start, end))

    def shares(self) -> dict[str, float]:
        """Return each phase's share of the loop's time lately: `share_<phase>`, 0 to 1."""
        total = sum(self._sums.values())
        return {f"share_{name}": value / total for name, value in self._sums.items() if total}

    def summary(self) -> str:
        """Return the shares in words, the largest first."""
        total = sum(self._sums.values())
        if not total:
            return "nothing was trained on yet"
        ordered = sorted(self._sums.items(), key=lambda item: -item[1])
        parts = [f"{_WORDS[name]} {value / total:.0%}" for name, value in ordered if value]
        return f"limited by {parts[0]}; {', '.join(parts[1:])}"


class _PhaseTimer:
    __slots__ = ("_phase", "_timer")

    def __init__(self, timer: LoopTimer, phase: str) -> None:
        self._timer = timer
        self._phase = phase


class _HostTimer(_PhaseTimer):
    __slots__ = ("_started",)

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self._timer.add(self._phase, time.perf_counter() - self._started)


class _DeviceTimer(_PhaseTimer):
    __slots__ = ("_device", "_end", "_start")

    def __init__(self, timer: LoopTimer, phase: str, device: torch.device) -> None:
        super().__init__(timer, phase)
        self._device = device

    def __enter__(self) -> None:
        self._start, self._end = timing_event(), timing_event()
        self._start.record(torch.cuda.current_stream(self._device))

    def __exit__(self, *raised: object) -> None:
        self._end.record(torch.cuda.current_stream(self._device))
        self._timer.add_events(self._phase, self._start, self._end)


def timing_event() -> torch.cuda.Event:
    """Return a CUDA event that knows when it happened."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def _record(seconds: dict[str, float]) -> None:
    """Record what there is, by literal names: a test compares them with docs/metrics.md."""
    if "wait" in seconds:
        metrics.record("trainer/wait_s", seconds["wait"])
    if "handle" in seconds:
        metrics.record("trainer/handle_s", seconds["handle"])
    if "transfer" in seconds:
        metrics.record("trainer/transfer_s", seconds["transfer"])
    if "backward" in seconds:
        metrics.record("trainer/backward_s", seconds["backward"])
    if "optimizer" in seconds:
        metrics.record("trainer/optimizer_s", seconds["optimizer"])
    if "publish" in seconds:
        metrics.record("trainer/snapshot_s", seconds["publish"])
    if "eval" in seconds:
        metrics.record("trainer/eval_s", seconds["eval"])
    if "checkpoint" in seconds:
        metrics.record("trainer/checkpoint_s", seconds["checkpoint"])
