"""The templates of examples/catch: a game in C++, and one in a shell, are trained on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import bray
from bray.goal import Outcome
from bray.templates.loading import load

ROOT = Path(__file__).parent.parent
CATCH = ROOT / "examples" / "catch"
CPP = ROOT / "clients" / "cpp"
SHORT = ["goal.max_frames=1024", "goal.episode_return=null", "goal.evaluation_episodes=10"]
OFF_POLICY = ["warmup_frames=128", "hidden=[16]", "replays_per_collect=4"]
ALGORITHMS = {"ppo": [], "impala": [], "dqn": OFF_POLICY, "sac": OFF_POLICY}


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The game, compiled."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    target = tmp_path_factory.mktemp("catch") / "game"
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    source = str(CPP / "examples" / "catch.cpp")
    subprocess.run(["g++", *flags, f"-I{CPP / 'include'}", source, "-o", str(target)], check=True)
    return target


def train(name: str, folder: Path, overrides: list[str]) -> Outcome:
    torch.set_num_threads(1)
    template = load(str(CATCH / f"{name}.yaml"), overrides)
    with bray.init(folder / "trials", name) as run:
        return template.make().train(run, goal=template.goal, seed=template.seed)


@pytest.mark.parametrize("name", [*ALGORITHMS, "curl"])
def test_a_template_is_short(name: str) -> None:
    assert len((CATCH / f"{name}.yaml").read_text().splitlines()) < 20


@pytest.mark.long  # the compiler takes ten seconds
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_game_in_cpp_is_trained_on(
    game: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(game.parent)

    outcome = train(name, tmp_path, [*SHORT, *ALGORITHMS[name]])

    assert outcome.frames >= 1024
    assert outcome.version >= 2
    assert len(outcome.episode_returns) == 10


@pytest.mark.long  # each step is a process
def test_a_shell_script_with_curl_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    monkeypatch.chdir(CATCH)
    overrides = [*SHORT, "goal.max_frames=128", "trainer.steps_per_replay=64"]

    outcome = train("curl", tmp_path, [*overrides, "agent.segment_length=16"])

    assert outcome.frames >= 128
    assert set(outcome.episode_returns) <= {-1.0, 1.0}
