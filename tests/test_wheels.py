"""The eight wheels, each installed with its needs alone, outside the workspace."""

from __future__ import annotations

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


PUBLIC = """
import importlib, sys
package = importlib.import_module(sys.argv[1])
for name in package.__all__:
    try:
        getattr(package, name)
    except ImportError as error:
        assert error.name == "ray" and name.startswith("Remote"), (name, error)
import importlib.metadata
print(*sorted(d.name.lower() for d in importlib.metadata.distributions()))
"""


@pytest.mark.parametrize("name", NAMES)
def test_public_names_load_with_the_declared_needs_alone(
    name: str, install: Callable[[str], Path], folder: Path
) -> None:
    script = run(install(name) / "python", "-c", PUBLIC, name.replace("-", "_"), cwd=folder)
    installed = set(script.split())
    assert name in installed
    assert not {"ray", "tensorboard"} & installed
    assert ("torch" in installed) == (name in ("bray", "bray-algo", "bray-trainer"))


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


PUSHED_AND_POPPED = """
import numpy as np
from bray_buffer import Buffer, BufferConfig
from bray_core import nested

segment = {"observation": np.ones((8, 4), np.float32), "length": np.array(8)}
buffer = Buffer(nested.spec(segment), BufferConfig(batch_size=2))
assert buffer.push(segment, segment) == 2
print(buffer.pop().tree["observation"].sum())
"""


def test_buffer_pushes_and_pops_without_torch(install: Callable[[str], Path], folder: Path) -> None:
    assert run(install("bray-buffer") / "python", "-c", PUSHED_AND_POPPED, cwd=folder) == "64.0\n"


def test_algo_has_nothing_of_bray_beside_it(install: Callable[[str], Path], folder: Path) -> None:
    (packages,) = (install("bray-algo").parent / "lib").glob("python*/site-packages")
    found = {path.name.split("-")[0] for path in packages.glob("bray*")}
    assert found == {"bray_algo"}
    script = "import torch, bray_algo as a; print(*a.mlp([4, 8, 2])(torch.ones(3, 4)).shape)"
    assert run(install("bray-algo") / "python", "-c", script, cwd=folder) == "3 2\n"
