from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import viewer_project
from playwright.sync_api import Browser, sync_playwright
from viewer_visit import CHROMIUM, FLAGS

from bray.viewer.server import Viewer


@pytest.fixture(scope="session")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project as `viewer_project.make` writes it."""
    project = tmp_path_factory.mktemp("viewed") / "demo"
    live = viewer_project.make(project)
    yield project
    live.close()


@pytest.fixture(scope="session")
def viewer(viewed: Path) -> Iterator[Viewer]:
    """The page of that project."""
    viewer = Viewer(viewed)
    yield viewer
    viewer.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
