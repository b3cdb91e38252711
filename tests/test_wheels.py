"""The eight wheels, outside the workspace, each with its needs alone.

One environment has all; what a distribution does not declare to need is hidden in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),  # a cold cache downloads what is installed
]

ROOT = Path(__file__).parent.parent
NAMES = sorted(file.parent.name for file in ROOT.glob("packages/*/pyproject.toml"))
UV = os.environ.get("UV") or shutil.which("uv") or "uv"
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT")
}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=CLEAN, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Removed at the end: an environment with torch has 5 GB, if mostly links to uv's cache."""
    with tempfile.TemporaryDirectory(prefix="bray-wheels-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def wheels(folder: Path) -> dict[str, Path]:
    """Distribution → its wheel, built from a copy of the sources."""
    listed = run("git", "ls-files", "-z", "-co", "--exclude-standard", "packages", cwd=ROOT)
    for name in filter(None, [*listed.split("\0"), "pyproject.toml"]):
        if (ROOT / name).is_file():  # listed, but deleted
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "copy" / name)
    build = ("build", "--all-packages", "--no-sources", "--wheel", "--out-dir", folder / "dist")
    run(UV, *build, cwd=folder / "copy")
    built = sorted((folder / "dist").glob("*.whl"))
    return {file.name.split("-")[0].replace("_", "-"): file for file in built}


@pytest.fixture(scope="module")
def install(wheels: dict[str, Path], folder: Path) -> Callable[[str], Path]:
    """Make an empty environment with one distribution and its needs; return its `bin`.

    What it needs of bray comes from the wheels: the public index holds another `bray`. The rest
    has the pinned versions, which uv's cache holds already.
    """
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    constraints = [f"{name} @ {wheel.as_uri()}" for name, wheel in wheels.items()]
    constraints += pins["constraint-dependencies"]
    (folder / "constraints.txt").write_text("\n".join(constraints))
    made: dict[str, Path] = {}

    def environment(distribution: str) -> Path:
        if distribution not in made:
            home = folder / "environments" / distribution
            run(UV, "venv", "--quiet", "--python", sys.executable, home, cwd=folder)
            target = ("--python", home / "bin" / "python", "--constraint", "constraints.txt")
            run(UV, "pip", "install", *target, distribution, cwd=folder)
            made[distribution] = home / "bin"
        return made[distribution]

    return environment


def test_eight_wheels_are_complete(wheels: dict[str, Path]) -> None:
    assert sorted(wheels) == NAMES
    assert len(NAMES) == 8
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
            (metadata,) = (file for file in files if file.endswith(".dist-info/METADATA"))
            headers = HeaderParser().parsestr(archive.read(metadata).decode())
        assert f"{name.replace('-', '_')}/py.typed" in files
        assert any(file.endswith("/licenses/LICENSE") for file in files), name
        assert headers["Name"] == name
        assert headers["License-Expression"] == "MIT"
        assert headers["Requires-Python"] == ">=3.11"
        assert headers["Summary"]
        assert f"# {name}" in headers.get_payload()
        assert not any("tests" in Path(file).parts for file in files), name


def test_a_wheel_wants_its_siblings_at_its_own_version(wheels: dict[str, Path]) -> None:
    pinned = 0
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = (f for f in archive.namelist() if f.endswith(".dist-info/METADATA"))
            headers = HeaderParser().parsestr(archive.read(metadata).decode())
        for need in map(Requirement, headers.get_all("Requires-Dist", [])):
            if need.name in NAMES:
                assert str(need.specifier) == f"=={headers['Version']}", (name, str(need))
                pinned += 1
    assert pinned > 20


DECLARED = r"""
import importlib.metadata, re, sys

def normal(name):
    return re.sub("[-_.]+", "-", name).lower()

def add_needs(name, extras, found):
    # What a distribution declares to need, and what that needs.
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # needed on another platform
        return
    known = (normal(name), extras) in found
    found.add((normal(name), extras))
    for line in [] if known else lines:
        extra = re.search("extra == ['\"]([^'\"]+)", line)
        if extra is None or extra[1] in extras:
            needed = re.match(r"([\w.-]+)\s*(?:\[([^]]*)\])?", line)
            wanted = tuple(part.strip() for part in (needed[2] or "").split(",") if part)
            add_needs(needed[1], wanted, found)

found = set()
add_needs(sys.argv[1], (), found)
declared = {name for name, _ in found}
owners = importlib.metadata.packages_distributions()

class Undeclared:
    def find_spec(self, name, path=None, target=None):
        if name in owners and not declared & {normal(owner) for owner in owners[name]}:
            raise ModuleNotFoundError(f"{sys.argv[1]} does not declare {name}", name=name)

sys.meta_path.insert(0, Undeclared())
"""
"""Hides all of an environment but one distribution (the first argument) and what it declares."""

PUBLIC = f"""{DECLARED}
import importlib
package = importlib.import_module(sys.argv[1].replace("-", "_"))
for name in package.__all__:
    try:
        getattr(package, name)
    except ImportError as error:
        assert error.name == "ray" and name.startswith("Remote"), (name, error)
print(*sorted(declared))
"""


@pytest.mark.parametrize("name", NAMES)
def test_public_names_load_with_the_declared_needs_alone(
    name: str, install: Callable[[str], Path], folder: Path
) -> None:
    declared = set(run(install("bray") / "python", "-c", PUBLIC, name, cwd=folder).split())
    assert name in declared
    assert not {"ray", "tensorboard"} & declared
    assert ("torch" in declared) == (name in ("bray", "bray-algo", "bray-trainer"))


def test_what_is_not_declared_is_not_there(install: Callable[[str], Path], folder: Path) -> None:
    script = f"{DECLARED}\nimport torch"
    command = [install("bray") / "python", "-c", script, "bray-buffer"]
    done = subprocess.run(command, cwd=folder, env=CLEAN, capture_output=True, text=True)
    assert "bray-buffer does not declare torch" in done.stderr


SERVED = """
import sys
from importlib.util import find_spec
import numpy as np
from bray_core.codec import decode, encode
from bray_server import Client

assert not any(map(find_spec, ["torch", "ray", "tensorboard"]))
with Client(sys.argv[1]) as client:
    reply = decode(client.call(encode([np.array([1, 2, 3, 4], np.float32)])))
print(reply["version"], *reply["outputs"].tolist())
"""


@contextmanager
def serving(program: Path, export: Path) -> Iterator[str]:
    """`bray serve` on a free port; ended as by Ctrl-C."""
    command: list[str | Path] = [program, "serve", export, "--tcp-port", "0", "--http-port", "0"]
    with subprocess.Popen(
        command, cwd=export.parent, env=CLEAN, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = (re.search(r"tcp://[\d.]+:\d+", line) for line in process.stdout)
            yield next(match.group() for match in found if match)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=5) == 0
        finally:
            process.kill()


def test_model_serves_without_torch(install: Callable[[str], Path], folder: Path) -> None:
    import torch

    from bray_model import Model

    with Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32)) as model:
        wanted = model(np.array([1, 2, 3, 4], np.float32))
        model.export(folder / "export")
    programs = install("bray-model")
    with serving(programs / "bray", folder / "export") as address:
        reply = run(programs / "python", "-c", SERVED, address, cwd=folder).split()
    assert int(reply[0]) == 0
    np.testing.assert_allclose([float(value) for value in reply[1:]], wanted, rtol=1e-5)


PUSHED_AND_POPPED = f"""{DECLARED}
import numpy as np
from bray_buffer import Buffer, BufferConfig
from bray_core import nested

segment = {{"observation": np.ones((8, 4), np.float32), "length": np.array(8)}}
buffer = Buffer(nested.spec(segment), BufferConfig(batch_size=2))
assert buffer.push(segment, segment) == 2
print(buffer.pop().tree["observation"].sum())
"""


def test_buffer_pushes_and_pops_without_torch(install: Callable[[str], Path], folder: Path) -> None:
    command = (install("bray") / "python", "-c", PUSHED_AND_POPPED, "bray-buffer")
    assert run(*command, cwd=folder) == "64.0\n"


def test_algo_has_nothing_of_bray_beside_it(install: Callable[[str], Path], folder: Path) -> None:
    (packages,) = (install("bray-algo").parent / "lib").glob("python*/site-packages")
    found = {path.name.split("-")[0] for path in packages.glob("bray*")}
    assert found == {"bray_algo"}
    script = "import torch, bray_algo as a; print(*a.mlp([4, 8, 2])(torch.ones(3, 4)).shape)"
    assert run(install("bray-algo") / "python", "-c", script, cwd=folder) == "3 2\n"


@pytest.fixture(scope="module")
def with_third_party(install: Callable[[str], Path], folder: Path) -> Path:
    """The programs of an environment to which another distribution adds parts of its own."""
    programs = install("bray")
    shutil.copytree(ROOT / "tests" / "third_party", folder / "acme")
    run(UV, "build", "--wheel", "--out-dir", folder / "acme-dist", cwd=folder / "acme")
    (wheel,) = (folder / "acme-dist").glob("acme_parts-*.whl")
    target = ("--python", programs / "python", "--no-deps", "--no-index")
    run(UV, "pip", "install", *target, wheel, cwd=folder)
    return programs


def test_an_algorithm_a_source_and_a_network_of_another_distribution_train(
    with_third_party: Path, folder: Path
) -> None:
    command = ("train", folder / "acme" / "lights.yaml", "--project", "trials", "--json")
    done = subprocess.run(
        [with_third_party / "bray", *command], cwd=folder, env=CLEAN, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr  # whether its goal is reached is no matter
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["frames"] >= 256
    assert outcome["version"] > 1
    written = (folder / "trials" / "lights" / "config.yaml").read_text()
    assert all(words in written for words in ("wary_ppo", "kind: lights", "network: pairs"))


def test_settings_of_another_distribution_are_checked(with_third_party: Path, folder: Path) -> None:
    template = folder / "acme" / "lights.yaml"
    program = with_third_party / "bray"
    assert "Wary" in run(program, "config", "explain", "wary_ppo", cwd=folder)
    assert "wary_ppo on lights: valid" in run(program, "config", "check", template, cwd=folder)
    for wrong, words in (
        ("source.num_light=3", "did you mean 'num_lights'?"),
        ("source.num_lights=0", "num_lights: expected 1 or more, got 0"),
        ("trainer.warines=2", "did you mean 'wariness'?"),
        ("trainer.wariness=0", "wariness: expected more than 0, got 0.0"),
        ("source.kind=light", "did you mean 'lights'?"),
        ("trainer.algorithm=wary", "did you mean 'wary_ppo'?"),
        ("model.settings={widht: 3}", "did you mean 'width'?"),
        ("model.network=pair", "did you mean 'pairs'?"),
    ):
        done = subprocess.run(
            [program, "train", template, wrong],
            cwd=folder,
            env=CLEAN,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, words in done.stderr) == (2, True), (wrong, done.stderr)
