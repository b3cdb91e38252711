"""Build the site into site/: docs/, a page for each algorithm, and the tutorials.

    uv run python scripts/site.py

The pages of algorithms come from what each declares, the tutorials from the notebooks in
docs/tutorials; neither is kept in the repository. Warnings are errors.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bray import registry
from bray.training.algorithm import PARTS, Algorithm, load_algorithm
from bray.training.combination import WORDS
from bray_core.settings.json_schema import json_schema

ROOT = Path(__file__).resolve().parent.parent
GROUP = "bray.algorithms"
PACING = {
    "lockstep": "players wait for each version of the policy",
    "lagging": "players go on with an older version",
    "ratio": "playing and training in proportion, from a replay",
    "population": "a generation is played, then learnt from",
    "offline": "nothing is played",
}


def algorithm_page(name: str) -> str:
    """Return the page of an algorithm as Markdown."""
    algorithm = load_algorithm(name)
    module = sys.modules[algorithm.__module__].__doc__ or ""
    first, _, rest = module.strip().partition("\n")
    lines = [f"# {algorithm.title}", "", first, rest, "", *facts(name, algorithm), ""]
    for part in PARTS:
        lines += settings(part, algorithm)
    return "\n".join(lines)


def facts(name: str, algorithm: type[Algorithm[Any]]) -> Iterator[str]:
    """Yield a list of what an algorithm takes."""
    takes = algorithm.takes
    if takes.plays == "environments":
        yield f"- Command: `bray train {name} {algorithm.example}`"
        yield f"- Actions: {'; '.join(WORDS[kind] for kind in takes.actions)}"
        yield f"- Memory: {'yes' if takes.memory else 'no'}"
        yield f"- Simulators that call over the wire: {'yes' if takes.gamecores else 'no'}"
    else:
        yield f"- Plays {takes.plays}: `bray train {name} {algorithm.example}`"
    if takes.demonstrations:
        yield "- Needs recorded episodes: `demonstrations=…`"
    yield f"- Pace: {PACING[algorithm.pacing]}"
    yield f"- Budget, where none is given: {algorithm.budget:,} frames"
    yield f"- Code: `{algorithm.__module__}`"


def settings(part: str, algorithm: type[Algorithm[Any]]) -> list[str]:
    """Return the table of a part's settings, nothing where there are none."""
    properties = json_schema(algorithm.config_of(part)).get("properties", {})
    if not properties:
        return []
    given = algorithm.defaults("")
    rows = [
        f"| `{part}.{name}` | {default(given.get(f'{part}.{name}', one.get('default')))} "
        f"| {cell(one.get('description', ''))} |"
        for name, one in properties.items()
    ]
    return [
        f"## {part}",
        "",
        PARTS[part],
        "",
        "| setting | default | |",
        "|---|---|---|",
        *rows,
        "",
    ]


def default(value: object) -> str:
    """Return a default as it is written in a template."""
    return "" if value is None else f"`{json.dumps(value, default=str)}`"


def cell(text: str) -> str:
    """Return text that stands in one cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def tutorial_page(notebook: Path) -> str:
    """Return a notebook as Markdown, with a link to the notebook itself."""
    cells = json.loads(notebook.read_text())["cells"]
    texts = [
        "".join(one["source"])
        if one["cell_type"] == "markdown"
        else f"```python\n{''.join(one['source'])}\n```"
        for one in cells
    ]
    return "\n\n".join([*texts, f"[The notebook]({notebook.name})", ""])


def build(folder: Path) -> Path:
    """Build the site in an empty folder; return where it lies.

    Raises:
        SystemExit: the site has a warning; says which.
    """
    docs = folder / "docs"
    shutil.copytree(ROOT / "docs", docs)
    shutil.copy(ROOT / "zensical.toml", folder)
    (folder / "packages").symlink_to(ROOT / "packages")
    (docs / "reference" / "algorithms").mkdir()
    for name in registry.names(GROUP):
        (docs / "reference" / "algorithms" / f"{name}.md").write_text(algorithm_page(name))
    for notebook in (docs / "tutorials").glob("*.ipynb"):
        notebook.with_suffix(".md").write_text(tutorial_page(notebook))
    index = docs / "index.md"  # in the repository it links the notebooks themselves
    index.write_text(index.read_text().replace(".ipynb)", ".md)"))
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode or "No issues found" not in built.stderr:
        raise SystemExit(built.stdout + built.stderr)
    return folder / "site"


def main() -> None:
    """Build the site, and put it where the last one lay."""
    with tempfile.TemporaryDirectory() as folder:
        made = build(Path(folder))
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.move(made, ROOT / "site")
    print(f"{ROOT / 'site'}: {len(list((ROOT / 'site').rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
