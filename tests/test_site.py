"""The site of docs/: built without a warning, whole, and from this machine alone."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from bray import registry

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["'](?P<src>[^"']+)|"""
    r"""<link\b[^>]*\bhref=["'](?P<href>[^"']+)|"""
    r"""@import\s+(?:url\()?["']?(?P<import>[^"')\s;]+)|"""
    r"""\burl\(["']?(?P<url>[^"')]+)"""
)
"""What a browser fetches by itself."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the build happens beside the checkout, not in it."""
    module = runpy.run_path(str(ROOT / "scripts" / "site.py"))
    return module["build"](tmp_path_factory.mktemp("site"))


def test_every_page_is_built_and_reachable(site: Path) -> None:
    links = "".join((site / page).read_text() for page in ("index.html", "start.html"))
    for page in (ROOT / "docs").rglob("*.md"):
        built = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / built).is_file(), built
        assert f'href="./{built}"' in links, f"{built}: no link in the navigation"


def test_every_algorithm_and_tutorial_has_a_page(site: Path) -> None:
    links = (site / "index.html").read_text()
    algorithms = [f"reference/algorithms/{name}.html" for name in registry.names("bray.algorithms")]
    tutorials = [f"tutorials/{one.stem}.html" for one in (ROOT / "docs").glob("tutorials/*.ipynb")]
    assert len(algorithms) > 15
    assert len(tutorials) == 3
    for page in algorithms + tutorials:
        assert (site / page).is_file(), page
        assert f'href="./{page}"' in links, f"{page}: no link in the navigation"
    ppo = (site / "reference" / "algorithms" / "ppo.html").read_text()
    assert "trainer.clip" in ppo
    assert "Schulman" in ppo


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    known = {line.split()[0] for line in inventory.splitlines()}
    for package in sorted(path.name for path in ROOT.glob("packages/*/src/*")):
        module = importlib.import_module(package)
        page = (ROOT / "docs" / "reference" / f"{package}.md").read_text()
        for name in module.__all__:
            public = getattr(module, name)
            whole = public.__name__ if isinstance(public, ModuleType) else f"{package}.{name}"
            assert whole in known or f"::: {whole}\n" in page, whole


def test_a_page_loads_nothing_of_another_host(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for found in LOADED.finditer(file.read_text()):
            target = next(filter(None, found.groups()))
            rel = found[0].startswith("<link") and 'rel="canonical"' in found[0]
            assert rel or not re.match(r"(?:https?:)?//", target), f"{file}: {target}"


def test_links_of_pages_beside_the_site_lead_to_files() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    pages = [ROOT / name for name in listed if not name.startswith("docs/")]
    pages = [page for page in pages if page.is_file()]  # listed, but deleted
    assert len(pages) > 20
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\n[gone](gone.md)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\n')
    command = [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode != 0


def test_pictures_are_small() -> None:
    for picture in [*ROOT.glob("docs/*.gif"), *ROOT.glob("docs/*.webp")]:
        assert picture.stat().st_size < 400_000, picture
