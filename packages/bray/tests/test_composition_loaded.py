"""Policies that were trained together play on by themselves: each is found by its model's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from composed_runs import EXAMPLES, train

from bray.composition.loaded import player_of
from bray.templates.composition import AgentPart
from bray_core.errors import ConfigError

FEW = ("num_envs=2", "goal.evaluation_episodes=2", "goal.max_frames=128")
STEPS = ("trainers.hunter.steps_per_replay=64", "trainers.runner.steps_per_replay=64")
ALONE = """\
models: {hunter: {load: TRIAL}}
trainers: {runner: {algorithm: ppo, steps_per_replay: 64}}
sources:
  field:
    kind: agents
    environment: simple_tag_v3
    agents: {"adversary_*": hunter, "agent_*": runner}
"""


@pytest.mark.long
def test_a_runner_learns_from_hunters_that_learn_no_more(tmp_path: Path) -> None:
    train(EXAMPLES / "several" / "tag.yaml", tmp_path / "both", *FEW, *STEPS)
    (tmp_path / "alone.yaml").write_text(ALONE.replace("TRIAL", str(tmp_path / "both")))

    outcome = train(tmp_path / "alone.yaml", tmp_path / "alone", *FEW)

    assert outcome.version >= 2
    assert outcome.frames in range(128, 192), "hunters' steps do not count"
    hunter = AgentPart(name="hunter", model="hunter", load=str(tmp_path / "both"))
    manifest = json.loads((Path(player_of(hunter)) / "manifest.json").read_text())
    assert Path(player_of(hunter)).parents[1].name == "hunter"
    assert manifest["actor"]["config"]["spaces"]["observation"]["shape"] == [16]
    other = AgentPart(name="wolf", model="wolf", load=str(tmp_path / "both"))
    with pytest.raises(ConfigError, match=r"models\.wolf\.load: .* expected one of hunter, runner"):
        player_of(other)
