"""axe-core, from npm, finds no fault in any page of the viewer, light or dark, wide or narrow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from viewer_visit import Visit, needs_chromium

from bray.viewer.server import Viewer

pytestmark = [needs_chromium, pytest.mark.long]
NPM = shutil.which("npm")
AXE = "axe-core@4"
PAGES = {
    "trials": ".charts path.line",
    "compare": ".compared tbody tr",
    "loop/live": "[data-part=trainer]",
    "system/live": "main",
    "versions/ppo-1": "tbody tr",
    "league/league": ".ratings td.player",
    "episodes/ppo-1": "img[data-step]",
    "log/ppo-2": ".record",
    "settings/ppo-1": ".settings td",
    "builder": ".node",
}
"""Each page, and what is there once it is drawn."""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core; `BRAY_AXE` names a file of it."""
    if found := os.environ.get("BRAY_AXE"):
        return Path(found).read_text()
    if NPM is None:
        pytest.skip("needs npm: apt-get install npm")
    folder = tmp_path_factory.mktemp("axe")
    command = [NPM, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm does not bring {AXE} within two minutes")
    if done.returncode:
        pytest.skip(f"npm does not bring {AXE}: {done.stderr[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def every_page(viewed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A project with something on each page, and the builder."""
    folder = tmp_path_factory.mktemp("every")
    shutil.copytree(viewed, folder / "trials")
    (folder / "trials" / "ppo-1" / "notes.json").write_text('{"tags": ["best"], "text": "x"}')
    (folder / "trials" / "ppo-2" / "config.yaml").write_text("seed: 2\ntrainer: {epochs: 3}\n")
    viewer = Viewer(folder / "trials", builder=folder)
    yield viewer
    viewer.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_no_page_has_a_fault(
    browser: Browser, every_page: Viewer, axe: str, scheme: Any, width: int
) -> None:
    height = 900 if width > 1000 else 800
    size = {"width": width, "height": height}
    visit = Visit(browser, every_page, color_scheme=scheme, viewport=size)
    found: dict[str, list[str]] = {}
    over: dict[str, int] = {}
    for name, drawn in PAGES.items():
        page = visit.open(*name.split("/"))
        page.locator(drawn).first.wait_for()
        page.evaluate(axe)
        faults = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        found[name] = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in faults]
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        over[name] = page.evaluate(wide)
        visit.picture(f"axe-{name.split('/')[0]}-{scheme}-{width}")
    visit.context.close()
    assert {name: faults for name, faults in found.items() if faults} == {}, json.dumps(found)
    assert {name: pixels for name, pixels in over.items() if pixels > 0} == {}
    assert not visit.problems
