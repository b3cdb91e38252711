"""Every page of the site is followed as a reader would: its blocks, in order, in an empty folder.

- A block with a title is a file of that name, whatever its language.
- `sh` runs, all of a page in one shell; `python` without a title is a program that runs, in one
  interpreter with the programs right after it.
- After `<!-- test: until "TEXT" -->`, `sh` is another terminal: it runs on beside the rest, which
  goes on once its output has TEXT. It is ended (SIGTERM, to its process group) with the
  page, the last one first.
- `text` is what a program printed. Any other block needs a title, or `<!-- no-test: reason -->`.
- `<!-- test: slow -->` and `<!-- test: ray -->` anywhere on a page mark it so. A guide is `long`,
  and so is the first page, whose steps `tests/test_loop.py` and `tests/test_project.py` take, too.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bray import registry
from bray.templates.shipped import names as templates
from bray_core.cli import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r'(?:<!-- (?:no-test: (?P<reason>.+?)|test: until "(?P<until>[^"\n]+)") -->\s*)?'
    r"^(?P<indent> *)```(?P<language>\w*)(?P<attributes>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
TITLE = re.compile(r'title="([^"]+)"')
OF_RAY_HERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that a Ray of this process, started by another test, sets for its own workers."""
TIMEOUT_S = 280
"""Of a page; most take some 25 s of a core."""
PROLOGUE = """\
set -em  # -m: each terminal in the background is a process group
terminals=()
leave() {
    status=$?
    for ((i = ${#terminals[@]} - 1; i >= 0; i--)); do  # what began last leaves what it joined
        kill -TERM -- "-${terminals[i]}" 2> /dev/null || true
        wait "${terminals[i]}" || true
    done
    exit $status
}
trap leave EXIT
"""
TERMINAL = """\
( {code}
) > {log} 2>&1 &
terminals+=($!)
until grep -qF {until} {log}; do
    kill -0 $! 2> /dev/null || {{ cat {log}; exit 1; }}
    sleep 0.1
done
"""


def pages() -> list[Any]:
    cases = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        if page.parent.name == "manual":  # tests/test_readmes.py runs its programs, each alone
            continue
        if BLOCK.search(text) and not page.name.endswith(".zh.md"):
            marks = [
                getattr(pytest.mark, m) for m in re.findall(r"<!-- test: (slow|ray) -->", text)
            ]
            if page.parent != DOCS or page.name == "start.md":
                marks.append(pytest.mark.long)
            cases.append(pytest.param(page, id=str(page.relative_to(DOCS)), marks=marks))
    return cases


def script(page: Path) -> str:
    """Return the shell script that does what a reader of the page does."""
    parts, text = [PROLOGUE], page.read_text()
    programs: list[str] = []  # lines of those that follow each other

    def run_programs() -> None:
        if programs:
            command = ["python", str(ROOT / "tests" / "run_blocks.py"), str(page), *programs]
            parts.append(shlex.join(command) + "\n")
            programs.clear()

    for number, block in enumerate(BLOCK.finditer(text)):
        code, title = textwrap.dedent(block["code"]), TITLE.search(block["attributes"])
        if block["reason"] or block["language"] == "text":
            continue
        if block["language"] == "python" and not title:
            programs.append(str(text.count("\n", 0, block.start("indent")) + 1))
            continue
        run_programs()
        if title:
            parts.append(written(title[1], code))
        elif block["language"] == "sh" and block["until"]:
            log = f"terminal-{number}.log"
            parts.append(TERMINAL.format(code=code, log=log, until=shlex.quote(block["until"])))
        elif block["language"] == "sh":
            parts.append(code)
        else:
            raise AssertionError(f"nobody runs this block:\n{block[0]}")
    run_programs()
    return "".join(parts)


def test_each_block_has_somebody_who_runs_it() -> None:
    for page in pages():  # those of long pages, too, in no time
        script(*page.values)


def written(name: str, code: str) -> str:
    name = shlex.quote(name)
    return f'mkdir -p "$(dirname {name})"\ncat > {name} << "END-OF-BLOCK"\n{code}END-OF-BLOCK\n'


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", pages())
def test_page_works(page: Path, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != OF_RAY_HERE}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script(page)],
        cwd=tmp_path,
        env=inherited | {"PATH": path, "BRAY_CHECKOUT": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = shell.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        for child in children:  # the shell itself then leaves as after any failure
            os.kill(int(child), signal.SIGTERM)
        output, _ = shell.communicate()
        pytest.fail(f"not done within {TIMEOUT_S} s:\n{output}{terminals(tmp_path)}")
    assert shell.returncode == 0, output


def terminals(folder: Path) -> str:
    """Return what each terminal of a page that is not done has printed so far."""
    logs = sorted(folder.glob("terminal-*.log"))
    return "".join(f"\n== {log.name}\n{log.read_text()}" for log in logs)


def test_translations_have_the_same_blocks() -> None:
    for page in [*ROOT.glob("*.zh.md"), *DOCS.rglob("*.zh.md")]:
        original = page.with_name(page.name.replace(".zh.md", ".md"))
        assert blocks(page) == blocks(original), page


def test_the_number_of_algorithms_is_told_as_it_is() -> None:
    count = len(registry.names())
    for page in (ROOT / "README.md", DOCS / "start.md"):
        assert (
            f"of {count}\nalgorithms" in page.read_text()
            or f"of {count} algorithms" in page.read_text()
        )
    for page in (ROOT / "README.zh.md", DOCS / "start.zh.md"):
        assert f"{count} 种算法" in page.read_text()


def test_the_help_names_every_algorithm_and_template(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out.partition("algorithms: ")[2]))
    assert words >= {*registry.names(), *templates()}


def blocks(page: Path) -> list[tuple[str, str]]:
    found = BLOCK.finditer(page.read_text())
    return [(block["language"], block["code"]) for block in found]


def test_the_player_among_the_examples_is_the_one_that_the_template_starts() -> None:
    shipped = ROOT / "packages/bray/src/bray/templates/play_guess.py"
    assert (ROOT / "examples/guess/play.py").read_bytes() == shipped.read_bytes()
