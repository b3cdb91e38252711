"""Another distribution's algorithm: its wheel is installed, and `bray` trains and serves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ALGORITHM = '''"""REINFORCE with a baseline: Williams 1992."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.on_policy import OnPolicy
from bray_algo import n_step
from bray_core.settings.ranges import PositiveFloat
from bray_trainer.sequences import valid_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class VanillaConfig(ActorCriticConfig):
    """The hyperparameters of REINFORCE."""

    sharpness: PositiveFloat = 1.0
    """Weight of the policy's loss."""


class VanillaTrainer(ActorCriticTrainer):
    """One replay is one step."""

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        now = self.columns(batch)
        target = n_step(
            batch["reward"], now.value.detach(), now.final_value, batch["terminated"],
            batch["length"], gamma=self.part.gamma,
        )
        valid = valid_steps(batch)
        policy = -(now.log_prob * (target - now.value.detach()))[valid].mean()
        value = (target - now.value)[valid].square().mean()
        return self.part.sharpness * policy + value, {"policy_loss": policy}


class Vanilla(OnPolicy[VanillaConfig]):
    """REINFORCE: each version plays a segment in every environment, and learns from it once."""

    title = "REINFORCE"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": VanillaConfig}
    trainer = VanillaTrainer
'''
METADATA = "Metadata-Version: 2.1\nName: acme-vanilla\nVersion: 0.1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY_POINTS = "[bray.algorithms]\nvanilla = acme_vanilla:Vanilla\n"
SMALL = ["num_envs=2", "segment_length=8", "hidden=[8]", "--frames", "256", "--episodes", "2"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("acme")
    wheel, info = folder / "acme_vanilla-0.1.0-py3-none-any.whl", "acme_vanilla-0.1.0.dist-info"
    files = {
        "acme_vanilla.py": ALGORITHM,
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": WHEEL,
        f"{info}/entry_points.txt": ENTRY_POINTS,
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    command = ["uv", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    command += ["--target", str(folder / "site"), str(wheel)]
    subprocess.run(command, check=True, timeout=60)
    return folder / "site"


def bray(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{installed}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-m", "bray_core.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_it_is_trained_from_runners_and_over_the_wire_and_validated(
    installed: Path, tmp_path: Path
) -> None:
    for trial, more in (("runners", []), ("wire", ["num_processes=1"])):
        words = ["train", "vanilla", "CartPole-v1", *SMALL, *more, "--goal", "1", "--json"]
        done = bray(installed, tmp_path, *words, "--trial", trial)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["version"] >= 2
        done = bray(installed, tmp_path, "validate", f"trials/{trial}")
        assert done.returncode == 0, done.stderr
    assert "algorithm: vanilla" in (tmp_path / "trials" / "wire" / "config.yaml").read_text()


def test_it_is_documented_completed_and_its_settings_are_checked(
    installed: Path, tmp_path: Path
) -> None:
    schema = json.loads(bray(installed, tmp_path, "config", "schema").stdout)
    trainer = schema["$defs"]["vanilla"]["properties"]["trainer"]["properties"]
    assert trainer["sharpness"]["description"] == "Weight of the policy's loss."
    shown = bray(installed, tmp_path, "config", "explain", "vanilla").stdout
    assert re.search(r"trainer\.sharpness +1\.0 +Weight of the policy's loss\.", shown)
    done = bray(installed, tmp_path, "train", "vanila", "CartPole-v1")
    assert (done.returncode, "did you mean 'vanilla'?" in done.stderr) == (2, True)
    done = bray(installed, tmp_path, "train", "vanilla", "CartPole-v1", "sharpnes=2")
    assert (done.returncode, "did you mean 'trainer.sharpness'?" in done.stderr) == (2, True)
    done = bray(installed, tmp_path, "train", "vanilla", "CartPole-v1", "sharpness=0")
    assert (done.returncode, "sharpness: expected more than 0, got 0" in done.stderr) == (2, True)


def test_without_the_wheel_it_is_not_there(tmp_path: Path) -> None:
    done = bray(tmp_path, tmp_path, "train", "vanilla", "CartPole-v1")
    assert done.returncode == 2
    assert "expected one of a2c" in done.stderr
