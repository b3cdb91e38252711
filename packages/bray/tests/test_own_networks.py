"""Networks of yours in places where they see something else than a plain batch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import bray
from bray.algorithms import es, impala, ppo
from bray.goal import Goal
from bray.policies.config import NetworkConfig, TrunkConfig
from bray.policies.export_check import warn_of_export
from bray.policies.many_weights import check_many_weights
from bray.policies.networks import example_inputs, make_policy
from bray.sources.environments import read_spaces
from bray_actor.spaces import of_gymnasium
from bray_core.cli import main
from bray_core.errors import ConfigError

SPACES = read_spaces("CartPole-v1")
T, B = 4, 3


@pytest.mark.parametrize("normalize", [False, True])
def test_a_policy_that_knows_one_step_is_trained_on_segments(normalize: bool) -> None:
    config = NetworkConfig(network="own_networks:StepPolicy", normalize_observation=normalize)
    policy: Any = make_policy(SPACES, config, 0)
    observation, state = torch.rand(T, B, 4), torch.rand(B, 5)
    length = torch.tensor([4, 2, 3])
    found = policy.replay(observation, state, length)
    for step in range(T):
        outputs = policy(observation[step], state)
        state = outputs["state"]
        for name in ("logits", "value"):
            valid = step < length
            torch.testing.assert_close(found[name][step][valid], outputs[name][valid])
    short = policy.replay(observation, torch.zeros(B, 5), torch.tensor([2, 1, 2]))
    assert short["value"].shape == (T, B)


@pytest.mark.parametrize("algorithm", [ppo.PPO, impala.IMPALA])
def test_it_is_trained_whole(algorithm: Any, tmp_path: Path) -> None:
    settings: Any = {"network": "own_networks:StepPolicy", "segment_length": 8, "num_envs": 2}
    if algorithm is ppo.PPO:
        settings |= {"steps_per_replay": 32, "epochs": 1}
    with bray.init(tmp_path, "trial") as run:
        goal = Goal(evaluate_at=1e9, max_frames=64, evaluation_episodes=1)
        outcome = algorithm.of("CartPole-v1", **settings).train(run, goal=goal, seed=1)
    assert outcome.version > 0


def test_a_trunk_sees_a_batch_also_from_evolution_strategies() -> None:
    module = es.policy(SPACES, TrunkConfig(network="own_networks:RowTrunk"), 7)
    theta = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    player = es.CandidatePlayer("CartPole-v1", module, 4, 0.1)
    returns, frames, _ = player.play(theta.numpy(), (7, 3), 4)
    assert sum(returns) == frames
    player.close()


@pytest.mark.parametrize("where", ["network", "encoders"])
def test_evolution_strategies_refuse_what_takes_no_weights_of_many(where: str) -> None:
    name = f"own_networks:{'BranchingTrunk' if where == 'network' else 'BranchingEncoder'}"
    named: Any = {"network": name} if where == "network" else {"encoders": {"observation": name}}
    config = TrunkConfig(**named)
    words = rf"^model.network: '{name}': .*vmap.*own_networks.py, line \d+, in forward.*torch.where"
    with pytest.raises(ConfigError, match=words):
        check_many_weights(es.policy(SPACES, config, 7), SPACES, config)
    fits = TrunkConfig(network="own_networks:RowTrunk")
    check_many_weights(es.policy(SPACES, fits, 7), SPACES, fits)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("WideTrunk", r"expected features of float32, got float64: return them with `.float\(\)`"),
        ("PairTrunk", r"failed with .*RuntimeError: .* \(own_networks.py, line \d+, in forward\)"),
        ("KeepingTrunk", r"expected a network that `copy.deepcopy` copies after a call: Runtime"),
        ("FailingTrunk", r"RuntimeError: no kernels for this card \(own_networks.py, line \d+, in"),
        ("WidePolicy", r"expected output value of float32, got float64: return it with `.float"),
        ("DetachedPolicy", r"expected outputs with gradients, got none: leave out torch.no_grad"),
        ("ChangingPolicy", r"expected observations that stay as they are, .*: write `x = x \+ 1`"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(network: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model.network: 'own_networks:{network}': .*{words}"):
        make_policy(SPACES, NetworkConfig(network=f"own_networks:{network}"), 0)


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ("SettledTrunk", {"encoders": {"observation": "flat"}}),
        ("SettledPolicy", {"encoders": {"observation": "flat"}}),
        ("SettledPolicy", {"memory_size": 8}),
        ("SettledPolicy", {"distribution": "beta"}),
        ("SettledPolicy", {"autoregressive": True}),
    ],
)
def test_settings_of_the_default_network_that_yours_never_sees_are_refused(
    network: str, settings: dict[str, Any]
) -> None:
    config = NetworkConfig(network=f"own_networks:{network}", **settings)
    setting = next(iter(settings))
    with pytest.raises(ConfigError, match=f"model.{setting}: expected .*, which would not see it"):
        make_policy(SPACES, config, 0)
    make_policy(SPACES, NetworkConfig(network=f"own_networks:{network}"), 0)


def test_a_trunk_of_yours_has_a_memory_and_a_network_without_a_config_sees_all_settings() -> None:
    for network in ("SettledTrunk", "StepPolicy"):
        config = NetworkConfig(network=f"own_networks:{network}", memory_size=8)
        assert make_policy(SPACES, config, 0).state_size


def test_a_network_is_looked_at_with_one_number_of_the_type_in_which_it_comes() -> None:
    seen = of_gymnasium("count", spaces.Box(0, 9, (), np.int64), spaces.Discrete(2))
    policy = make_policy(seen, NetworkConfig(network="own_networks:CountTrunk"), 0)
    assert policy(torch.tensor([3, 9]))["logits"].shape == (2, 2)


def test_settings_that_nobody_reads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.settings: expected none with the default net"):
        ppo.PPO.of("CartPole-v1", settings={"width": 8})
    encoders = {"observation": "own_networks:RowTrunk"}
    ppo.PPO.of("CartPole-v1", settings={"width": 8}, encoders=encoders)
    with pytest.raises(ConfigError, match=r"network: expected module:Class or file.py:Class, got"):
        ppo.PPO.of("CartPole-v1", network="HeroNet")


def test_a_network_without_an_export_is_told_before_it_is_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for network, is_told in (("BranchingTrunk", True), ("RowTrunk", False), ("default", False)):
        name = network if network == "default" else f"own_networks:{network}"
        module = make_policy(SPACES, NetworkConfig(network=name), 0)
        warn_of_export(module, example_inputs(SPACES, 0), "policy")
        shown = capsys.readouterr()
        words = r"warning: model.network: it trains, but cannot be exported, .*own_networks.py"
        assert bool(re.match(words, shown.out)) == is_told
        assert not shown.err  # torch's own words about graphs


def test_what_was_trained_and_has_no_export_is_kept_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["segment_length=8", "num_envs=2", "steps_per_replay=32", "epochs=1"]
    command = ["train", "ppo", "CartPole-v1", "network=own_networks:BranchingTrunk", *small]
    budget = ["--goal", "1e9", "--frames", "64", "--episodes", "1", "--project", str(tmp_path)]
    assert main([*command, *budget, "--trial", "kept"]) == 2
    shown = capsys.readouterr()
    assert shown.out.index("warning: model.network: it trains") < shown.out.index("evaluation at")
    assert f"what was trained is kept in {tmp_path / 'kept'}" in shown.err
    assert json.loads((tmp_path / "kept" / "result.json").read_text())["frames"] >= 64
