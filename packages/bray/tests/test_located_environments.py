"""Files that a run names are found by workers whose working directory is another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bray
from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.templates.loading import compose

_CODE = """
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Pole(CartPoleEnv):
    pass
"""


class _MadeError(Exception):
    """Ends a run before it plays."""


@pytest.mark.parametrize("algorithm", ["appo", "dqn"])
def test_a_worker_makes_an_environment_of_a_file_from_another_folder(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rollouts(run: bray.Run, name: str, make: Callable[[int], Any], **options: Any) -> None:
        monkeypatch.chdir(tmp_path)  # as a worker's
        make(0).close()
        raise _MadeError

    own = tmp_path / "own"
    own.mkdir()
    file = own / f"pole_of_{algorithm}.py"  # a module has one file in a process
    file.write_text(_CODE)
    monkeypatch.chdir(own)
    monkeypatch.setattr(bray.Run, "rollouts", rollouts)
    template = compose(algorithm, f"{file.name}:Pole", ["num_envs=2", "goal.max_frames=128"])
    launch = Launch(project=tmp_path, trial="t")
    with pytest.raises(_MadeError):
        run_template(template, launch.open, completed_goal(template))
