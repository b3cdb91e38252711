"""The recorded episodes of a trial: pages of summaries, and each step with its content."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from bray.viewer.request_bodies import action_names_of, decode_body, reward_of, value_of
from bray.viewer.trial_file import entries, opener_of
from bray_actor.recording import (
    SUFFIX,
    Episode,
    LongEpisodeError,
    RecordedRequest,
    read_episode,
)
from bray_core.errors import NotFoundError

_MAX_SUMMARY_BYTES = 1024 * 1024
_SUMMARY = {"max_bytes": 4 * 1024 * 1024, "max_requests": 10_000}
"""Limits of an episode that the list sums up; a longer one is summed up when it is opened."""
_MAX_STEPS = 100_000
"""Requests of an episode that is shown; a longer one is not."""
_MAX_KEPT_BYTES = 128 * 1024 * 1024
"""Size of all episodes that stay in memory; the one opened last stays in any case."""
_KEPT = 8
"""Number of episodes that stay in memory, and a thousand times as many summaries."""


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """One request of an episode: the argument of a render function."""

    index: int
    """Number of the request in the episode, from 0."""
    kind: str
    """`start`, `tick` or `end`."""
    at_s: float
    """Seconds since the session began."""
    body: Any
    """Content of the request: nested arrays of bray's codec, the content of JSON, text or bytes."""
    reply: Any
    """Content of the reply, in the same forms; None: the request failed."""


class StepsOnDemand(Sequence[EpisodeStep]):
    """The steps of an episode; each is decoded when it is asked for."""

    def __init__(self, requests: Sequence[RecordedRequest]) -> None:
        self._requests = requests
        self.rewards = [reward_of(request.body) for request in requests]
        self.num_bytes = sum(200 + len(r.body) + len(r.reply or b"") for r in requests)

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> EpisodeStep: ...

    @overload
    def __getitem__(self, index: slice) -> StepsOnDemand: ...

    def __getitem__(self, index: int | slice) -> EpisodeStep | StepsOnDemand:
        if isinstance(index, slice):
            return StepsOnDemand(self._requests[index])
        request = self._requests[index]
        reply = None if request.reply is None else decode_body(request.reply)
        number = range(len(self._requests))[index]  # a negative index counts from the end
        return EpisodeStep(number, request.kind, request.at_s, decode_body(request.body), reply)

    def describe(self) -> dict[str, object]:
        """Return the kind, time and reward of each step."""
        return {
            "kinds": [request.kind for request in self._requests],
            "at_s": [round(request.at_s, 4) for request in self._requests],
            "rewards": self.rewards,
            "values": [value_of(request.reply) for request in self._requests],
            "action_names": action_names_of(self._requests[0].body) if self._requests else [],
        }


class RecordedEpisodes:
    """The episodes of one project's trials. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._names: dict[Path, tuple[int, list[str]]] = {}
        self._open: OrderedDict[Path, StepsOnDemand] = OrderedDict()
        self._heads: OrderedDict[Path, dict[str, object]] = OrderedDict()

    def names(self, trial: Path) -> list[str]:
        """Return the names of a trial's episodes, the newest first; read again when they change."""
        folder = trial / "episodes"
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            return []
        kept = self._names.get(folder)
        if kept is None or kept[0] != changed:  # a listing of 10,000 files is worth keeping
            found = [e.name for e in entries(trial, folder) if e.name.endswith(SUFFIX)]
            kept = changed, sorted((n.removesuffix(SUFFIX) for n in found), reverse=True)
            self._names[folder] = kept
        return kept[1]

    def page(self, trial: Path, start: int, number: int) -> dict[str, object]:
        """Return `{"total", "episodes": [...]}`, the newest first, `number` of them at most."""
        names = self.names(trial)
        shown = names[max(start, 0) : max(start, 0) + number]
        return {"total": len(names), "episodes": [self._head(trial, name) for name in shown]}

    def steps(self, trial: Path, name: str) -> StepsOnDemand:
        """Return an episode's steps.

        Raises:
            NotFoundError: the trial has no episode of this name.
            SpecError: the file is damaged.
        """
        path = self._path(trial, name)
        with self._lock:
            steps = self._open.pop(path, None)
        if steps is None:
            episode = self._read(trial, path)
            steps = StepsOnDemand(episode.requests)
            self._keep_head(path, _sum_up(episode, steps.rewards))
        with self._lock:
            self._open[path] = steps
            total = sum(one.num_bytes for one in self._open.values())
            while len(self._open) > 1 and (total > _MAX_KEPT_BYTES or len(self._open) > _KEPT):
                _, dropped = self._open.popitem(last=False)
                total -= dropped.num_bytes
        return steps

    def _read(self, trial: Path, path: Path) -> Episode:
        with self._reading:  # one at a time: each may take as much memory as an episode has
            try:
                return read_episode(path, max_requests=_MAX_STEPS, opener=opener_of(trial))
            except FileNotFoundError as error:
                raise NotFoundError(f"episode: {path.name} was deleted meanwhile") from error

    def describe(self, trial: Path, name: str) -> dict[str, object]:
        """Return an episode's summary, and the kind, time and reward of each step."""
        steps = self.steps(trial, name)
        return {**self._head(trial, name), **steps.describe()}

    def _path(self, trial: Path, name: str) -> Path:
        if name not in self.names(trial):
            raise NotFoundError(f"episode: no {name[:100]!r} in trial {trial.name}")
        return trial / "episodes" / f"{name}{SUFFIX}"

    def _head(self, trial: Path, name: str) -> dict[str, object]:
        path = trial / "episodes" / f"{name}{SUFFIX}"
        with self._lock:
            kept = self._heads.get(path)
        if kept is None:
            kept = self._look(trial, path)
        return {"name": name, **kept}

    def _look(self, trial: Path, path: Path) -> dict[str, object]:
        try:
            opener = opener_of(trial)
            with opener(path) as file:
                size = file.seek(0, os.SEEK_END)
            if size > _MAX_SUMMARY_BYTES:  # read only when it is opened
                return {"bytes": size}
            try:
                episode = read_episode(path, **_SUMMARY, opener=opener)
            except LongEpisodeError:
                return self._keep_head(path, {"bytes": size})
            rewards = [reward_of(request.body) for request in episode.requests]
            return self._keep_head(path, {"bytes": size, **_sum_up(episode, rewards)})
        except FileNotFoundError:
            return {"problem": "was deleted meanwhile"}
        except (ValueError, OSError) as error:  # one damaged file must not hide the others
            return self._keep_head(path, {"problem": str(error)})

    def _keep_head(self, path: Path, head: dict[str, object]) -> dict[str, object]:
        with self._lock:
            self._heads[path] = {**self._heads.get(path, {}), **head}
            while len(self._heads) > 1000 * _KEPT:
                self._heads.popitem(last=False)
        return head


def _sum_up(episode: Episode, rewards: Sequence[float | None]) -> dict[str, object]:
    known = [reward for reward in rewards if reward is not None]
    return {
        "session": episode.session[:200],
        "began_s": episode.began_s,
        "outcome": episode.outcome[:200],
        "is_whole": episode.is_whole,
        "num_steps": len(rewards),
        "seconds": episode.requests[-1].at_s if rewards else 0.0,
        "return": sum(known) if known else None,
    }
