from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import viewer_project

from bray.viewer.server import Viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from viewer_visit import Visit


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
    from playwright.sync_api import sync_playwright
    from viewer_visit import CHROMIUM, FLAGS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, viewer: Viewer) -> Iterator[Visit]:
    """A visit of that page, without a problem until its end."""
    from viewer_visit import Visit

    visit = Visit(browser, viewer)
    yield visit
    visit.context.close()
    assert not visit.problems
    assert all(url.startswith((viewer.address, "blob:")) for url in visit.requests)
