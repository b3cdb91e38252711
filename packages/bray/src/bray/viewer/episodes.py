"""Recorded episodes of a trial: pages of them, and one with what its bodies hold."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bray_actor.recording import SUFFIX, Episode, read_episode
from bray_core import codec, nested
from bray_core.errors import CodecError, NotFoundError

_MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_SUMMARY_BYTES = 1024 * 1024
"""Longer files are summed up only when they are opened."""
_SHOWN_ELEMENTS = 64
_SHOWN_LEAVES = 200
_SHOWN_TEXT = 2000
_KEPT = 8
"""Episodes kept decoded; of summaries a thousand times as many."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request of an episode: what a render function is given."""

    index: int
    """Of the request in the episode."""
    kind: str
    """`start`, `tick` or `end`."""
    at_s: float
    """Since the session began."""
    body: Any
    """What the gamecore sent: nested arrays if it is bray's codec, what JSON holds, text, bytes."""
    reply: Any
    """What it was answered, likewise; None: it failed."""


class Episodes:
    """The episodes of one project's trials. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[Path, tuple[int, list[str]]] = {}
        self._open: OrderedDict[Path, tuple[Step, ...]] = OrderedDict()
        self._heads: OrderedDict[Path, dict[str, Any]] = OrderedDict()

    def names(self, trial: Path) -> list[str]:
        """Return the names of a trial's episodes, the newest first; read again when they change."""
        folder = trial / "episodes"
        try:
            changed = folder.stat().st_mtime_ns
            kept = self._names.get(folder)
            if kept is None or kept[0] != changed:
                with os.scandir(folder) as entries:
                    found = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
                kept = changed, sorted((n.removesuffix(SUFFIX) for n in found), reverse=True)
                self._names[folder] = kept
        except FileNotFoundError:
            return []
        return kept[1]

    def page(self, trial: Path, start: int, number: int) -> dict[str, Any]:
        """Return `{"total", "episodes": [...]}`, the newest first, `number` of them at most."""
        names = self.names(trial)
        shown = names[max(start, 0) : max(start, 0) + number]
        return {"total": len(names), "episodes": [self._head(trial, name) for name in shown]}

    def steps(self, trial: Path, name: str) -> tuple[Step, ...]:
        """Return an episode's steps, decoded.

        Raises:
            NotFoundError: the trial has no episode of this name.
            SpecError: the file is damaged.
        """
        path = self._path(trial, name)
        with self._lock:
            steps = self._open.pop(path, None)
        if steps is None:
            episode = read_episode(path)
            steps = _steps(episode)
            self._keep_head(path, _sum_up(episode, steps))
        with self._lock:
            self._open[path] = steps
            while len(self._open) > _KEPT:
                self._open.popitem(last=False)
        return steps

    def describe(self, trial: Path, name: str) -> dict[str, Any]:
        """Return an episode's summary, and kind, time and reward of each step."""
        steps = self.steps(trial, name)
        return {
            **self._head(trial, name),
            "kinds": [step.kind for step in steps],
            "at_s": [round(step.at_s, 4) for step in steps],
            "rewards": [_reward(step) for step in steps],
        }

    def _path(self, trial: Path, name: str) -> Path:
        if name not in self.names(trial):
            raise NotFoundError(f"episode: no {name[:100]!r} in trial {trial.name}")
        return trial / "episodes" / f"{name}{SUFFIX}"

    def _head(self, trial: Path, name: str) -> dict[str, Any]:
        path = trial / "episodes" / f"{name}{SUFFIX}"
        with self._lock:
            kept = self._heads.get(path)
        if kept is None:
            kept = self._look(path)
        return {"name": name, **kept}

    def _look(self, path: Path) -> dict[str, Any]:
        try:
            size = path.stat().st_size
            if size > _MAX_SUMMARY_BYTES:
                return {"bytes": size}
            episode = read_episode(path)
            return self._keep_head(path, {"bytes": size, **_sum_up(episode, _steps(episode))})
        except FileNotFoundError:
            return {"problem": "was deleted meanwhile"}
        except ValueError as error:  # SpecError: one damaged file must not hide the others
            return self._keep_head(path, {"problem": str(error)})

    def _keep_head(self, path: Path, head: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._heads[path] = {**self._heads.get(path, {}), **head}
            while len(self._heads) > 1000 * _KEPT:
                self._heads.popitem(last=False)
        return head


def decoded(body: bytes) -> Any:
    """Return what a body holds: bray's codec, JSON, text, or else the bytes themselves."""
    if not body:
        return None
    try:
        return codec.decode(body, max_bytes=_MAX_BODY_BYTES)
    except CodecError:
        pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def leaves(tree: Any) -> list[dict[str, Any]]:
    """Return path, type, shape, bounds and the first values of each leaf, for reading."""
    if isinstance(tree, dict | list | tuple):
        found = nested.flatten(tree)
    else:
        found = {} if tree is None else {"": tree}
    return [_leaf(path, leaf) for path, leaf in list(found.items())[:_SHOWN_LEAVES]]


def _leaf(path: str, leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, bytes):
        text = f"{len(leaf)} bytes: {leaf[:32].hex(' ')}"
        return {"path": path, "type": "bytes", "text": text}
    if not isinstance(leaf, int | float | np.ndarray | np.generic) or isinstance(leaf, bool):
        return {"path": path, "type": type(leaf).__name__, "text": str(leaf)[:_SHOWN_TEXT]}
    array = np.asarray(leaf)
    shown: dict[str, Any] = {"path": path, "type": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind not in "biuf" or not array.size:
        return {**shown, "text": str(array)[:_SHOWN_TEXT]}
    values = array.ravel()[:_SHOWN_ELEMENTS].astype(np.float64)
    finite = array[np.isfinite(array)].astype(np.float64)
    if finite.size:
        shown |= {"min": finite.min(), "max": finite.max(), "mean": finite.mean()}
    shown["values"] = [float(f"{v:.6g}") if np.isfinite(v) else str(v) for v in values.tolist()]
    return shown


def _steps(episode: Episode) -> tuple[Step, ...]:
    return tuple(
        Step(
            index,
            request.kind,
            request.at_s,
            decoded(request.body),
            None if request.reply is None else decoded(request.reply),
        )
        for index, request in enumerate(episode.requests)
    )


def _sum_up(episode: Episode, steps: tuple[Step, ...]) -> dict[str, Any]:
    rewards = [reward for step in steps if (reward := _reward(step)) is not None]
    return {
        "session": episode.session[:200],
        "began_s": episode.began_s,
        "outcome": episode.outcome[:200],
        "is_whole": episode.is_whole,
        "num_steps": len(steps),
        "seconds": steps[-1].at_s if steps else 0.0,
        "return": sum(rewards) if rewards else None,
    }


def _reward(step: Step) -> float | None:
    reward = step.body.get("reward") if isinstance(step.body, dict) else None
    try:
        value = float(reward)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if np.isfinite(value) else None
