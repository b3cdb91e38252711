"""Policies of SAC's kin and of Beta distributions, exported and asked over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bray.algorithms import crossq, ppo, sac, tqc
from bray.policies.networks import make_policy
from bray.sources.environments import read_spaces
from bray.training.evaluation import evaluate
from bray_actor import PolicyConfig
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")


def policy_of(algorithm: Any, task: str, **settings: Any) -> Any:
    made = algorithm.of(task, hidden=(8,), **settings)
    spaces = read_spaces(task)
    if algorithm is ppo.PPO:
        return make_policy(spaces, made.parts.model, 0)
    return made.policy(spaces, 0)


@pytest.mark.parametrize(
    ("algorithm", "task", "settings"),
    [
        pytest.param(sac.SAC, "CartPole-v1", {}, id="sac-choice"),
        pytest.param(tqc.TQC, "Pendulum-v1", {}, id="tqc"),
        pytest.param(crossq.CrossQ, "Pendulum-v1", {"critic_hidden": (8,)}, id="crossq"),
        pytest.param(ppo.PPO, "Pendulum-v1", {"distribution": "beta"}, id="beta"),
    ],
)
def test_an_export_plays_as_its_network(
    algorithm: Any, task: str, settings: Any, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    spaces = read_spaces(task)
    config = PolicyConfig(spaces=spaces.described())
    with Model(policy_of(algorithm, task, **settings), spaces.example) as model:
        model.export(tmp_path / "export")
        want = evaluate(model, task, 2, seed=3, config=config)
    with Model(tmp_path / "export") as exported:
        got = evaluate(exported, task, 2, seed=3, config=config)
    assert got == pytest.approx(want, rel=1e-3)
