"""The HTTP server behind `bray view`: it reads a project's folder and opens one port.

The page writes tags and notes into trials; only the builder, where it is turned on, writes other
files and starts runs.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path

from aiohttp import web

from bray.viewer.access_control import AccessControl
from bray.viewer.pages import ViewerPages
from bray.viewer.project import Project
from bray.viewer.rendering import render_functions
from bray.viewer.templates.builder import BuilderPages
from bray_core.errors import ConfigError, PortInUseError
from bray_core.process.event_loop import EventLoopThread
from bray_server.limits.access import is_loopback

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_MAX_LINE_BYTES = 256 * 1024
"""Longest address of a request: it may name 200 trials."""
_STOP_S = 5.0
_MAX_BODY_BYTES = 128 * 1024


class Viewer:
    """Serves a project's page from a thread of its own, until it is closed.

    Args:
        project: folder of the trials.
        host: address to listen at; one that other machines reach needs a token.
        port: 0 takes any free one.
        token: secret that a visitor must know; None: whoever reaches the port may look.
        renders: functions `module:function` that draw a step of an episode.
        imports_renders: whether the render function that a trial's own settings name is imported
            too, to draw its episodes.
        builder: folder whose YAML files the page may write and run; None turns the builder off.

    Raises:
        NotFoundError: there is no such folder.
        ConfigError: a render function cannot be imported, or other machines reach the host and
            there is no token.
        PortInUseError: another program listens at the port.

    Examples:
        >>> import tempfile
        >>> viewer = Viewer(Path(tempfile.mkdtemp()), port=0)
        >>> viewer.address.startswith("http://127.0.0.1:")
        True
        >>> viewer.close()
    """

    def __init__(
        self,
        project: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        renders: Sequence[str] = (),
        imports_renders: bool = False,
        builder: Path | None = None,
    ) -> None:
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"--host: whoever reaches {host} could read every trial: add --token-env, or "
                "listen at 127.0.0.1"
            )
        if not 0 <= port <= 65535:
            raise ConfigError(f"--port: expected 0 to 65535, got {port}")
        if builder is not None and builder.is_dir():  # the first run is yet to be started
            project.mkdir(parents=True, exist_ok=True)
        trials = Project(project)
        self._pages = ViewerPages(
            trials,
            render_functions(renders),
            imports_renders=imports_renders,
            starts_runs=builder is not None,
        )
        self._builder = BuilderPages(builder, trials.path)
        self._host, self._port = host, port
        self._loop = EventLoopThread("viewer")
        try:
            self._runner = self._loop.run(self._start(token))
        except BaseException:
            self._loop.stop()
            self._pages.close()
            raise

    @property
    def address(self) -> str:
        """Address that a browser opens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        port: int = self._runner.addresses[0][1]
        return f"http://{host}:{port}"

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        if self._loop.loop.is_closed():
            return
        try:
            self._loop.run(self._runner.cleanup(), timeout_s=2 * _STOP_S)
        finally:
            self._loop.stop()
            self._pages.close()
            self._builder.close()

    async def _start(self, token: str | None) -> web.AppRunner:
        files = _static()
        guard = AccessControl(token, files.pop("login.html")[0].decode())
        files[""] = files.pop("index.html")  # served at /, all others below /static/
        app = web.Application(middlewares=[guard.answer], client_max_size=_MAX_BODY_BYTES)
        app.add_routes([*self._pages.routes(), *self._builder.routes()])
        app.router.add_get("/login", guard.ask)
        app.router.add_post("/login", guard.login)
        for name, (body, kind) in files.items():
            app.router.add_get(f"/static/{name}" if name else "/", _serving(body, kind))
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_STOP_S, max_line_size=_MAX_LINE_BYTES
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            if error.errno == errno.EADDRINUSE:
                cure = "choose another with --port, or 0 for any free one"
                raise PortInUseError(self._host, self._port, cure) from error
            raise ConfigError(f"--host: cannot listen at {self._host}: {error}") from error
        return runner


def _static() -> dict[str, tuple[bytes, str]]:
    """Return the content and the type of each file of the page, by name."""
    files = resources.files("bray.viewer").joinpath("static").iterdir()
    kinds = ((file, _TYPES.get(file.name.rpartition(".")[2])) for file in files)
    return {file.name: (file.read_bytes(), kind) for file, kind in kinds if kind is not None}


def _serving(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return handler
