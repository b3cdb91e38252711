"""Evaluation as production would see it: by gamecores, over the wire."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bray.goal import Goal
from bray_actor import PolicyActor, PolicyConfig
from bray_actor.atari import is_atari
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_core.errors import BrayError, DeadlineError
from bray_core.protocols import ModelProtocol
from bray_model import Model as LocalModel
from bray_model import ModelConfig
from bray_server import ServerThread

NUM_ENVS = 20
"""Environments that the gamecore plays side by side."""
_TIMEOUT_S = 600.0
_SEED = 1_000_000
"""Beyond a run's own seed: evaluations play in environments that training has not seen."""


def snapshot(model: Any, module: Any, example: Any) -> LocalModel:
    """Return a model's current version as a model of this process that nobody publishes to.

    Args:
        model: has `weights()`.
        module: module of the same kind, on the CPU.
        example: its inputs, with a batch dimension.
    """
    config = ModelConfig(max_batch_size=NUM_ENVS, pad_to=(NUM_ENVS,))
    made = LocalModel(module, example, name="snapshot", config=config)
    version, weights = model.weights()
    made.adopt(weights, version)  # also one that was never published
    return made


def evaluate_latest(
    model: Any,
    module: Any,
    example: Any,
    environment: str,
    goal: Goal,
    *,
    seed: int,
    state_size: int = 0,
) -> list[float]:
    """Play episodes with a `snapshot` of a model; return their returns, as `evaluate` does.

    Args:
        model: model, module and example are those of `snapshot`.
        module: likewise.
        example: likewise.
        environment: a Gymnasium id.
        goal: says how many episodes.
        seed: seed of the run.
        state_size: S of a recurrent policy; 0 is none.
    """
    with snapshot(model, module, example) as policy:
        episodes = goal.evaluation_episodes
        return evaluate(policy, environment, episodes, seed=seed + _SEED, state_size=state_size)


def evaluate(
    model: ModelProtocol, environment: str, episodes: int, *, seed: int, state_size: int = 0
) -> list[float]:
    """Play episodes against `model` from a gamecore process; return their returns.

    The policy takes its most likely actions; those of Atari games are drawn, as in training.

    Args:
        model: the policy; its weights must not change meanwhile.
        environment: a Gymnasium id.
        episodes: how many, shared out to the environments beforehand, so that short episodes
            are not preferred.
        seed: seed of the environments.
        state_size: S of a recurrent policy; 0 is none.

    Raises:
        BrayError: the gamecore failed; carries its last words.
        DeadlineError: it took longer than ten minutes.
    """
    # In many games a life waits for fire: a policy that never prefers it would never end.
    config = PolicyConfig(
        deterministic=not is_atari(environment), state_size=state_size, phase="evaluation"
    )
    lanes = LaneBarrier(model, map(str, range(min(NUM_ENVS, episodes))), plays_on=False)
    server = ServerThread(PolicyActor.factory(model, config, lanes=lanes))
    command = [sys.executable, "-m", "bray_actor.gamecores.gamecore", "--env", environment]
    command += ["--address", server.addresses[0], "--episodes", str(episodes), "--json"]
    command += ["--num-envs", str(NUM_ENVS), "--seed", str(seed)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process, which ends it
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"evaluation: no result after {_TIMEOUT_S:.0f} s") from None
    finally:
        server.close()
    if done.returncode:
        raise BrayError(f"evaluation: the gamecore failed: {done.stderr.strip()[-500:]}")
    return [float(value) for value in json.loads(done.stdout)["returns"]]
