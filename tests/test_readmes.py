"""Every python fence of the documents and every docstring example runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_programs import ForkedPrograms

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [ROOT / "README.md", *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/manual/*.md")]
)
FENCE = re.compile(
    r"(?:<!-- no-test: (?P<reason>[^\n]+?) -->\s*)?"
    r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


def fences(document: Path) -> list[int]:
    """Return the lines of its ```python fences; `<!-- no-test: reason -->` before one skips it."""
    text = document.read_text()
    return [
        text.count("\n", 0, found.start("indent")) + 1
        for found in FENCE.finditer(text)
        if not found["reason"]
    ]


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkedPrograms]:
    """What runs programs without importing torch for each."""
    programs = ForkedPrograms()
    yield programs
    programs.close()


def run(programs: ForkedPrograms, script: list[str], cwd: Path) -> None:
    code, output = programs.run(script, str(cwd))
    assert code == 0, output


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_fences_run(document: Path, tmp_path: Path, programs: ForkedPrograms) -> None:
    if lines := fences(document):
        script = [str(ROOT / "tests" / "run_blocks.py"), str(document), *map(str, lines)]
        run(programs, script, tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_example_runs(example: Path, tmp_path: Path, programs: ForkedPrograms) -> None:
    run(programs, [str(example)], tmp_path)


def test_a_program_that_fails_is_told(tmp_path: Path, programs: ForkedPrograms) -> None:
    program = tmp_path / "fails.py"
    for ending, code, words in (
        ("raise ValueError('no')", 1, "ValueError: no"),
        ("raise SystemExit(3)", 3, "begun"),
        ("import sys\nsys.exit('not so')", 1, "not so"),
    ):
        program.write_text(f"print('begun')\n{ending}\n")
        found, output = programs.run([str(program)], str(tmp_path))
        assert (found, words in output) == (code, True), output


def modules() -> list[str]:
    found = []
    for package in sorted(path.name for path in ROOT.glob("packages/*/src/*")):
        found.append(package)
        path = [str(ROOT / "packages" / package.replace("_", "-") / "src" / package)]
        found += [m.name for m in pkgutil.walk_packages(path, f"{package}.")]
    return found


NEEDS = {"bray_model.engines.tensorrt_engine": "tensorrt"}
"""Modules that load only with an extra that is not installed everywhere."""


@pytest.mark.parametrize("module", modules())
def test_docstring_examples_run(module: str) -> None:
    import numpy
    import torch

    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    loaded = importlib.import_module(module)
    names = {**vars(loaded), "np": numpy, "torch": torch}
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(loaded, module, globs=names):
        result = doctest.DocTestRunner(optionflags=flags).run(test)
        assert result.failed == 0, test.name
