"""Request handlers of the page: each reads a trial's files in a thread beside the event loop."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from bray.viewer import (
    comparison,
    league_results,
    log_tail,
    model_versions,
    project,
    rendering,
    system_figures,
    video,
)
from bray.viewer.access_control import Handler
from bray.viewer.decisions import decisions_of, without_frame
from bray.viewer.episodes import RecordedEpisodes, StepsOnDemand
from bray.viewer.http_json import json_reply, posted_object, query_integer, query_number
from bray.viewer.metric_log import AXES, MAX_NAMES, tail
from bray.viewer.project import Project
from bray.viewer.report.document import report
from bray.viewer.request_bodies import describe_leaves
from bray.viewer.seed_curves import SUMMARIES
from bray.viewer.trial_curves import read_curves
from bray.viewer.trial_notes import notes_of, save_notes
from bray.viewer.trial_settings import setting
from bray_core.errors import ConfigError
from bray_core.files.json_file import finite
from bray_core.settings.choice import check_choice

T = TypeVar("T")

_MAX_TRIALS = 200
_MAX_POINTS = 24_000
"""Number of points of all curves in one answer."""
_MAX_PAGE = 200


class ViewerPages:
    """The request handlers for one project.

    Args:
        trials: the project's trials.
        renders: render functions of episodes, by name; None is the default one.
        imports_renders: whether the render function that a trial's settings name is imported.
        starts_runs: whether the builder is on, which starts processes.
    """

    def __init__(
        self,
        trials: Project,
        renders: Mapping[str, rendering.RenderFunction | None],
        *,
        imports_renders: bool = False,
        starts_runs: bool = False,
    ) -> None:
        self._project = trials
        self._starts_runs = starts_runs
        self._imports_renders = imports_renders
        self._broken: dict[str, str] = {}
        """Name of each render function that could not be imported → why."""
        self._renders = dict(renders)
        self._episodes = RecordedEpisodes()
        self._painters: dict[str, rendering.Painter] = {}
        # matplotlib and most simulators' renderers want one thread, the same each time.
        self._brush = ThreadPoolExecutor(1, thread_name_prefix="render")
        self._filming = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return the addresses and their handlers."""
        trial = "/api/trials/{trial}"
        episode = f"{trial}/episodes/{{episode}}"
        return [
            web.get("/api/project", self._get_project),
            web.get("/api/trials", self._get_trials),
            web.get("/api/metrics", self._get_metrics),
            web.get("/api/curves", self._get_curves),
            web.get("/api/compare", self._get_comparison),
            web.get("/api/difference", self._get_difference),
            web.get("/api/report", self._get_report),
            web.get(trial, self._of_trial(project.describe)),
            web.get(f"{trial}/loop", self._of_trial(_loop)),
            web.get(f"{trial}/versions", self._of_trial(model_versions.versions)),
            web.get(f"{trial}/league", self._of_trial(league_results.league)),
            web.get(f"{trial}/ratings", self._of_trial(league_results.ratings)),
            web.get(f"{trial}/notes", self._of_trial(lambda trial: notes_of(trial).document())),
            web.post(f"{trial}/notes", self._post_notes),
            web.get(f"{trial}/log", self._get_log),
            web.get(f"{trial}/episodes", self._get_episodes),
            web.get(episode, self._get_episode),
            web.get(f"{episode}/steps/{{step}}", self._get_step),
            web.get(f"{episode}/steps/{{step}}/picture", self._get_picture),
            web.get(f"{episode}/video", self._get_video),
        ]

    def close(self) -> None:
        """Draw no more pictures."""
        self._brush.shutdown(wait=True, cancel_futures=True)

    async def _get_project(self, request: web.Request) -> web.Response:
        content = {
            "name": self._project.path.name,
            "path": str(self._project.path),
            "renders": list(self._renders),
            "axes": AXES,
            "video": list(video.FORMATS),
            "starts_runs": self._starts_runs,
        }
        return json_reply(request, content)

    async def _get_trials(self, request: web.Request) -> web.Response:
        return json_reply(request, await asyncio.to_thread(self._project.summaries))

    async def _get_metrics(self, request: web.Request) -> web.Response:
        names = _trials(request)

        def read() -> list[str]:
            found: set[str] = set()
            for name in names:
                found |= self._project.metrics(name).names()
            return sorted(found)[:MAX_NAMES]

        return json_reply(request, await asyncio.to_thread(read))

    async def _get_curves(self, request: web.Request) -> web.Response:
        names, query = _trials(request), request.query
        axis, metric = query.get("x", AXES[0]), query.get("metric", "")
        if axis not in AXES:
            raise ConfigError(f"x: expected one of {', '.join(AXES)}, got {axis[:50]!r}")
        weight = query_number(query, "smoothing", 0.0, 0.0, 0.9999)
        points = int(query_number(query, "points", 600, 4, 2000))
        # With many trials each curve gets fewer points: the answer keeps its size.
        points = max(4, min(points, _MAX_POINTS // max(1, len(names))))
        low = query_number(query, "from", -math.inf, -math.inf, math.inf)
        high = query_number(query, "to", math.inf, -math.inf, math.inf)

        seeds = query.get("seeds", SUMMARIES[0])
        check_choice("seeds", seeds[:50], SUMMARIES)

        def read() -> list[dict[str, object]]:
            return read_curves(
                self._project, names, metric, axis, seeds, weight, points, (low, high)
            )

        return json_reply(request, await asyncio.to_thread(read))

    async def _get_comparison(self, request: web.Request) -> web.Response:
        names = _trials(request)

        def look() -> dict[str, object]:
            return comparison.compared([self._project.trial(name) for name in names])

        return json_reply(request, await asyncio.to_thread(look))

    async def _get_difference(self, request: web.Request) -> web.Response:
        names = _trials(request)
        if len(names) != 2:
            raise ConfigError(f"trial: expected two trials, got {len(names)}")

        def look() -> dict[str, object]:
            return comparison.code_difference(*(self._project.trial(name) for name in names))

        return json_reply(request, await asyncio.to_thread(look))

    async def _get_report(self, request: web.Request) -> web.Response:
        names, seeds = _trials(request), request.query.get("seeds", "iqm")[:50]
        text = await asyncio.to_thread(report, self._project, names, seeds=seeds)
        name = names[0] if len(names) == 1 else self._project.path.name
        return web.Response(
            body=text.encode(errors="replace"),
            content_type="text/html",
            charset="utf-8",
            headers=_attachment(f"{name}-report", "html"),
        )

    async def _post_notes(self, request: web.Request) -> web.Response:
        posted = await posted_object(request)
        notes = await asyncio.to_thread(lambda: save_notes(self._trial(request), posted))
        return json_reply(request, notes)

    def _of_trial(self, read: Callable[[Path], object]) -> Handler:
        """Return a handler that replies with what `read` finds in the trial's folder."""

        async def handler(request: web.Request) -> web.Response:
            def look() -> object:
                return read(self._project.trial(request.match_info["trial"]))

            return json_reply(request, await asyncio.to_thread(look))

        return handler

    async def _get_log(self, request: web.Request) -> web.Response:
        query = request.query
        level = query.get("level", "INFO")
        if level not in log_tail.LEVELS:
            known = ", ".join(log_tail.LEVELS)
            raise ConfigError(f"level: expected one of {known}, got {level[:50]!r}")
        limit = int(query_number(query, "limit", 200, 1, 1000))
        places = {name: query_integer(query, name) for name in ("before", "after")}

        def look() -> dict[str, object]:
            trial = self._project.trial(request.match_info["trial"])
            if places["after"] is not None:
                return log_tail.after(trial, level=level, limit=limit, start=places["after"])
            return log_tail.before(trial, level=level, limit=limit, end=places["before"])

        return json_reply(request, await asyncio.to_thread(look))

    async def _get_episodes(self, request: web.Request) -> web.Response:
        start = query_integer(request.query, "start") or 0
        count = int(query_number(request.query, "number", 50, 1, _MAX_PAGE))

        def look() -> tuple[dict[str, object], str | None]:
            trial = self._trial(request)
            wanted = setting(trial, "render", "function")
            page = self._episodes.page(trial, start, count)
            return page, wanted if isinstance(wanted, str) else None

        page, render = await asyncio.to_thread(look)
        hint = await self._paint(partial(self._own_render, render))
        return json_reply(request, {**page, "render": render, "hint": hint})

    def _own_render(self, name: str | None) -> str | None:
        """Import the render function that a trial's settings name; return why that failed, or None.

        A file names it, and importing runs its code: only where `--import-renders` allows it.
        """
        if name is None or name in self._renders:
            return None
        if not self._imports_renders:
            return f"Its settings draw with {name}: bray view ... --import-renders"
        if name not in self._broken:
            try:
                self._renders[name] = rendering.load_render(name)
                return None
            except ConfigError as error:
                self._broken[name] = str(error)
        return self._broken[name]

    async def _get_episode(self, request: web.Request) -> web.Response:
        def look() -> dict[str, object]:
            return self._episodes.describe(self._trial(request), request.match_info["episode"])

        return json_reply(request, await asyncio.to_thread(look))

    async def _get_step(self, request: web.Request) -> web.Response:
        def look() -> dict[str, object]:
            steps = self._steps(request)
            step = steps[_index(request, steps)]
            return {
                "index": step.index,
                "kind": step.kind,
                "at_s": step.at_s,
                "body": describe_leaves(without_frame(step.body)),
                "decisions": decisions_of(step),
                "reply": None if step.reply is None else describe_leaves(step.reply),
            }

        return json_reply(request, await asyncio.to_thread(look))

    async def _get_picture(self, request: web.Request) -> web.Response:
        steps = await asyncio.to_thread(self._steps, request)
        index, painter = _index(request, steps), self._painter(request, steps)
        body = await self._paint(lambda: rendering.png(painter.image(index)))
        return web.Response(body=body, content_type="image/png")

    async def _get_video(self, request: web.Request) -> web.Response:
        kind = request.query.get("format", "webp")
        if kind not in video.FORMATS:
            raise ConfigError(f"format: expected one of {', '.join(video.FORMATS)}, got {kind!r}")
        frames_per_s = query_number(request.query, "frames_per_s", 15, 1, 50)
        steps = await asyncio.to_thread(self._steps, request)
        if not steps:
            raise ConfigError("episode: it has no steps")
        async with self._filming:  # one at a time: a video takes memory, and all that draws
            painter = self._painter(request, steps)
            frames = [video.scaled_down(await self._paint(partial(painter.image, 0)))]
            for index in video.frame_steps(len(steps), frames[0])[1:]:
                frames.append(video.scaled_down(await self._paint(partial(painter.image, index))))
            body = await asyncio.to_thread(video.encode, frames, kind, frames_per_s)
        headers = _attachment(request.match_info["episode"], kind)
        return web.Response(body=body, content_type=video.FORMATS[kind], headers=headers)

    async def _paint(self, paint: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._brush, paint)

    def _trial(self, request: web.Request) -> Path:
        return self._project.trial(request.match_info["trial"])

    def _steps(self, request: web.Request) -> StepsOnDemand:
        return self._episodes.steps(self._trial(request), request.match_info["episode"])

    def _painter(self, request: web.Request, steps: StepsOnDemand) -> rendering.Painter:
        """Return the painter of these steps: that of the last request, if it painted the same."""
        name = request.query.get("render", rendering.DEFAULT)
        if name not in self._renders:
            known = ", ".join(self._renders)
            raise ConfigError(f"render: expected one of {known}, got {name[:50]!r}")
        kept = self._painters.get(name)
        if kept is None or kept.steps is not steps:
            kept = self._painters[name] = rendering.Painter(self._renders[name], steps)
        return kept


def _attachment(name: str, kind: str) -> dict[str, str]:
    """Return the header by which a browser saves a reply as a file."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:200]
    return {"Content-Disposition": f'attachment; filename="{plain}.{kind}"'}


def _loop(trial: Path) -> dict[str, object]:
    found = tail(trial)
    mean = project.mean_return(trial, project.newest_values(found))
    shown = system_figures.figures(found, _capacity(trial), mean)
    return {**shown, "wires": system_figures.wire_figures(found)}


def _capacity(trial: Path) -> float | None:
    """Return the number of segments that the buffer holds, None where the settings do not tell."""
    capacity = setting(trial, "buffer", "capacity")
    return finite(capacity)


def _trials(request: web.Request) -> list[str]:
    names = list(dict.fromkeys(request.query.getall("trial", [])))
    if len(names) > _MAX_TRIALS:
        raise ConfigError(f"trial: expected {_MAX_TRIALS} at most, got {len(names)}")
    return names


def _index(request: web.Request, steps: StepsOnDemand) -> int:
    index = request.match_info["step"]
    if not (index.isascii() and index.isdecimal() and len(index) < 10 and int(index) < len(steps)):
        raise ConfigError(f"step: expected 0 to {len(steps) - 1}, got {index[:20]!r}")
    return int(index)
