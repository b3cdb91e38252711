"""Answers to the builder's page: open, check and save templates, start and stop runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from aiohttp import web

from bray.templates import loading, template
from bray.viewer.access_control import Handler
from bray.viewer.http_json import json_reply, posted_object, text_field
from bray.viewer.project import Project
from bray.viewer.started_runs import StartedRuns
from bray.viewer.templates.part_schema import form_schema
from bray.viewer.templates.template_edits import edited
from bray.viewer.templates.template_files import MAX_BYTES, TemplateFiles, TemplateText
from bray.viewer.templates.template_text import (
    InspectedTemplate,
    inspect_template,
    read_settings,
    template_yaml,
)
from bray_core.errors import ConfigError
from bray_core.files.json_file import is_deeper
from bray_core.settings.yaml_nodes import MAX_DEPTH


class BuilderPages:
    """The request handlers of the builder.

    Args:
        folder: folder whose YAML files the page may write and run; None turns the builder off.
        project: folder of the trials.

    Raises:
        NotFoundError: there is no such folder.
    """

    def __init__(self, folder: Path | None, project: Path) -> None:
        self._project = project
        self._drafts = TemplateFiles(folder) if folder is not None else None
        self._runs = StartedRuns(self._drafts.folder, project.resolve()) if self._drafts else None

    def routes(self) -> list[web.RouteDef]:
        """Return the addresses and their handlers."""
        place = "/api/builder"
        found: list[web.RouteDef] = [web.get(place, self._get_state)]
        for name, ask in (("schema", _schema), ("open", self._open)):
            found.append(web.get(f"{place}/{name}", self._getting(ask)))
        acts = (("check", _check), ("edit", _edit), ("part", _part), ("save", self._save))
        start, serve = (partial(self._start, how) for how in (StartedRuns.start, StartedRuns.serve))
        runs = (("start", start), ("serve", serve), ("watch", self._watch), ("stop", self._stop))
        for name, act in (*acts, *runs):
            found.append(web.post(f"{place}/{name}", self._posting(act)))
        return found

    def close(self) -> None:
        """Stop the runs."""
        if self._runs is not None:
            self._runs.close()

    async def _get_state(self, request: web.Request) -> web.Response:
        if self._drafts is None or self._runs is None:
            return json_reply(request, {"folder": None, "project": str(self._project)})
        content = {
            "folder": str(self._drafts.folder),
            "templates": template.names(),
            "files": await asyncio.to_thread(self._drafts.names),
            "runs": self._runs.listing(),
        }
        return json_reply(request, content)

    def _getting(self, ask: Callable[[Mapping[str, str]], object]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            self._refuse_if_off()
            return json_reply(request, await asyncio.to_thread(ask, request.query))

        return handler

    def _posting(self, act: Callable[[Mapping[str, object]], object]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            self._refuse_if_off()
            return json_reply(request, await asyncio.to_thread(act, await posted_object(request)))

        return handler

    def _refuse_if_off(self) -> None:
        if self._drafts is None:
            raise web.HTTPForbidden(reason="the builder is off: bray view ... --builder FOLDER")

    def _open(self, query: Mapping[str, str]) -> TemplateText:
        assert self._drafts is not None
        if "template" in query:
            return _shipped(query["template"])
        return self._drafts.open(text_field(query, "file"))

    def _save(self, content: Mapping[str, object]) -> TemplateText:
        assert self._drafts is not None
        stamp = None if content.get("stamp") is None else text_field(content, "stamp")
        return self._drafts.save(text_field(content, "file"), text_field(content, "text"), stamp)

    def _start(
        self, start: Callable[[StartedRuns, str], object], content: Mapping[str, object]
    ) -> dict[str, object]:
        assert self._drafts is not None
        assert self._runs is not None
        opened = self._drafts.open(text_field(content, "file"))
        start(self._runs, opened["name"])
        return {"runs": self._runs.listing()}

    def _watch(self, content: Mapping[str, object]) -> dict[str, object]:
        """Let a trial's policy play an episode, in a process of its own."""
        assert self._runs is not None
        self._runs.watch(Project(self._project).trial(text_field(content, "trial")))
        return {"runs": self._runs.listing()}

    def _stop(self, content: Mapping[str, object]) -> dict[str, object]:
        assert self._runs is not None
        self._runs.stop(text_field(content, "trial"))
        return {"runs": self._runs.listing()}


def _shipped(name: str) -> TemplateText:
    """Return a template that ships with bray, written as the form writes it."""
    if name not in template.names():
        raise ConfigError(f"template: expected one of {', '.join(template.names())}")
    settings = inspect_template(loading.path_of(name).read_text())["settings"]
    assert settings is not None, "templates that ship with bray are valid"
    return {"name": f"{name}.yaml", "text": template_yaml(settings, ""), "stamp": None}


def _schema(query: Mapping[str, str]) -> dict[str, object]:
    """Return the JSON Schema of an algorithm's templates, and the names of all algorithms."""
    from bray.registry import names
    from bray.templates.schema import chosen_schema
    from bray_core.settings.json_schema import json_schema

    algorithm, task = text_field(query, "algorithm"), query.get("task", "")
    known = chosen_schema({"algorithm": algorithm, "source": {"environment": task}})
    return {"algorithms": names(), "schema": json_schema(known)}


def _check(content: Mapping[str, object]) -> InspectedTemplate:
    """Check a template's text, or settings of the form, which become its text."""
    text = _text(content)
    if content.get("settings") is None:
        return inspect_template(text)
    return inspect_template(template_yaml(_plain_object(content, "settings"), text))


def _edit(content: Mapping[str, object]) -> InspectedTemplate:
    """Change a template as its graph is drawn, and check it."""
    text = _text(content)
    settings = edited(_written(text), _plain_object(content, "edit"))
    made = template_yaml(settings, text)
    if len(made.encode()) > MAX_BYTES:
        raise ConfigError(f"text: expected {MAX_BYTES} bytes at most")
    return inspect_template(made)


def _part(content: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON Schema of a part's settings, without those that are wires."""
    return {"schema": form_schema(_written(_text(content)), text_field(content, "part"))}


def _text(content: Mapping[str, object]) -> str:
    text = text_field(content, "text")
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"text: expected {MAX_BYTES} bytes at most")
    return text


def _written(text: str) -> dict[str, object]:
    settings = read_settings(text)
    if settings is None:
        raise ConfigError("text: expected settings, as `name: value`: correct the text first")
    return settings


def _plain_object(content: Mapping[str, object], name: str) -> dict[str, object]:
    """Return an object that was posted, once it is known to be neither deep nor long."""
    found = content.get(name)
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: expected an object")
    if is_deeper(found, MAX_DEPTH):
        raise ConfigError(f"{name}: nested too deeply, {MAX_DEPTH} levels at most")
    if len(json.dumps(found)) > MAX_BYTES:
        raise ConfigError(f"{name}: expected {MAX_BYTES} bytes at most")
    return found
