"""Sessions of a serving machine are a data set: served over TCP, recorded, learnt from."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bray
from bray.algorithms import bc, iql
from bray.goal import Goal
from bray.sources import data_sets
from bray.sources.environments import read_spaces
from bray_actor.gamecores.gamecore import play
from bray_actor.recording import is_drawn, read_episode
from bray_core.cli import main
from bray_core.codec import encode
from bray_model import ExportReport, Model
from bray_server import Client

TASK = "CartPole-v1"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a policy that knows nothing."""
    from bray.policies.config import NetworkConfig
    from bray.policies.networks import example_inputs, make_policy

    spaces = read_spaces(TASK)
    module = make_policy(spaces, NetworkConfig(hidden=(8,)), 1)
    folder = tmp_path_factory.mktemp("exported") / "policy"
    with Model(module, example_inputs(spaces, 0), name="policy") as model:
        actor = {"name": "policy", "config": {"spaces": spaces.described()}}
        report: ExportReport = model.export(folder, actor=actor)
    return report.path


class Served:
    """`bray serve` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "bray_core.cli", "serve", *arguments]
        self.process = subprocess.Popen(
            [*command, "--tcp-port", "0", "--http-port", "0"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.startswith("listening on "))
        self.address = line.split()[2]

    def __enter__(self) -> str:
        return self.address

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0


def test_served_sessions_are_learnt_from(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    options = ("--record-share", "1", "--record-folder", str(folder), "--drain-s", "0.5")
    with Served(str(exported), *options) as address:
        returns = play(TASK, address, episodes=6, num_envs=3, seed=1)
    spaces = read_spaces(TASK)
    assert data_sets.mean_return([str(folder)], spaces) == pytest.approx(np.mean(returns))
    data = data_sets.open_data_set(str(folder), spaces, gamma=0.9)
    found = [data.steps(unit, data_sets.TRANSITION) for unit in range(data.num_units)]
    assert sorted(len(steps["reward"]) for steps in found) == sorted(map(int, returns))
    for steps in found:
        assert steps["discount"][-1] == 0, "the pole fell"
        assert (steps["discount"][:-1] == np.float32(0.9)).all()
        np.testing.assert_array_equal(steps["next_observation"][:-1], steps["observation"][1:])
    small: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "evaluate_every": 2, "max_steps": 2}
    goal = Goal(max_frames=1, evaluation_episodes=1)
    for algorithm in (bc.BC, iql.IQL):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "bray.training.off_policy.offline.evaluate_latest", lambda *_, **__: [0.0]
            )
            with bray.init(tmp_path, algorithm.__name__) as run:
                made = algorithm.of(TASK, demonstrations=str(folder), **small)
                assert made.train(run, goal=goal).version >= 1


@pytest.mark.long
def test_a_share_of_the_newest_is_kept_by_several_processes(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    names = [f"session-{number}" for number in range(40)]
    drawn = {name for name in names if is_drawn(name, 0.5)}
    assert 10 < len(drawn) < 30
    options = ("--record-share", "0.5", "--record-folder", str(folder), "--workers", "2")
    with (
        Served(str(exported), *options, "--drain-s", "0.5") as address,
        Client(address) as client,
    ):
        for number, name in enumerate(names):
            client.start(name, b"")
            client.end(name, encode({"terminated": True, "truncated": False}))
            expected = len(drawn.intersection(names[: number + 1])) - 4
            deadline = time.monotonic() + 20  # what the disk is too slow for would be lost
            while len(list(folder.glob("*.episode"))) < expected and time.monotonic() < deadline:
                time.sleep(0.01)
    files = sorted(folder.glob("*.episode"))
    assert {read_episode(file).session for file in files} == drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--record-share", "1.5"], "--record-share: expected 0 to 1, got 1.5"),
        (["--record-share", "nan"], "--record-share: expected 0 to 1, got nan"),
        (["--record-files", "0"], "--record-files: expected 1 or more, got 0"),
    ],
)
def test_bad_shares_are_refused(
    exported: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(exported), *arguments]) != 0
    assert message in capsys.readouterr().err
