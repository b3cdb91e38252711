"""A visit of the viewer's page in a real Chromium.

`VIEWER_SCREENSHOTS=folder` keeps screenshots there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from bray.viewer.server import Viewer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)
FLAGS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
expect.set_options(timeout=60_000)  # these machines are shared


class Visit:
    """A fresh browser profile at the page; what went wrong in it fails the test at the end."""

    def __init__(self, browser: Browser, viewer: Viewer, **options: Any) -> None:
        self.viewer = viewer
        options = {"viewport": {"width": 1440, "height": 900}, **options}
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(60_000)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: Any) -> None:
        refused = "the server responded with a status of 4" in message.text
        if message.type in ("error", "warning") and not refused:
            self.problems.append(message.text)

    def open(self, *parts: str) -> Page:
        self.page.goto(
            f"{self.viewer.address}/#/{'/'.join(quote(part, safe='') for part in parts)}"
        )
        return self.page

    def picture(self, name: str) -> None:
        if folder := os.environ.get("VIEWER_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png")
