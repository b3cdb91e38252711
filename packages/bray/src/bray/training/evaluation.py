"""Evaluation: whole episodes by a version that does not change meanwhile.

Policies are evaluated as production would see them: a gamecore process calls them over the wire.
Environments of Gymnasium's own, and of the running program, are played in this process instead,
with the same returns and in a fraction of the time, unless `Goal.evaluate_over_the_wire` is set.
Policies of teams play in this process.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from bray.goal import Goal
from bray.policies.networks import example_inputs
from bray_actor import PolicyActor, PolicyConfig
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_actor.runners.most_likely_play import play_most_likely
from bray_actor.runners.team_environments import TeamEnvironment
from bray_actor.spaces import resolve
from bray_core.errors import BrayError, DeadlineError
from bray_core.process.running_loop import run_to_end
from bray_core.process.user_modules import is_of_program, module_command
from bray_core.protocols import ModelProtocol
from bray_core.spaces import Spaces
from bray_model import Model as LocalModel
from bray_model import ModelConfig
from bray_server import ServerThread

NUM_ENVS = 20
"""Environments that the gamecore plays side by side."""
_SILENT_S = 600.0
"""Seconds without a step after which an evaluation is given up; whole episodes may take hours."""
_LOOK_S = 2.0
EVALUATION_SEED = 1_000_000
"""Added to a run's own seed: evaluations play in environments that training has not seen."""


def snapshot(model: Any, module: Any, example: Any, rows: int = NUM_ENVS) -> LocalModel:
    """Return a model's current version as a model of this process that nobody publishes to.

    Args:
        model: model that is trained; has `weights()`.
        module: module of the same kind, on the CPU.
        example: inputs of the module, with a batch dimension.
        rows: rows that are asked at once, at most.
    """
    config = ModelConfig(max_batch_size=rows, pad_to=(rows,))
    made = LocalModel(module, example, name="snapshot", config=config)
    version, weights = model.weights()
    made.adopt(weights, version)  # also one that was never published
    return made


def evaluate_simulators(
    source: Any, model: Any, module: Any, example: Any, goal: Goal, *, seed: int
) -> Sequence[float] | None:
    """Let a run's simulators play episodes with a `snapshot` of its model; return their returns.

    None: they have no way of their own to be evaluated.

    Args:
        source: what `bray.sources.gamecores.gamecores` returns.
        model: model that is trained; has `weights()`.
        module: module of the same kind, on the CPU.
        example: inputs of the module, with a batch dimension.
        goal: says how many episodes.
        seed: seed of the run.
    """
    with snapshot(model, module, example) as policy:
        returns: Sequence[float] | None = source.evaluate(
            policy, goal.evaluation_episodes, seed + EVALUATION_SEED
        )
    return returns


def evaluate_latest(
    model: Any,
    module: Any,
    spaces: Spaces,
    environment: str | EnvironmentSpec,
    goal: Goal,
    *,
    seed: int,
) -> list[float]:
    """Play episodes with a `snapshot` of a model; return their returns, as `evaluate` does.

    In this process, where that is a matter of speed alone; see `plays_here`.

    Args:
        model: model that is trained; has `weights()`.
        module: module of the same kind, on the CPU; a recurrent one has `state_size`.
        spaces: what the policy sees and may do.
        environment: a Gymnasium id, or how it is made.
        goal: says how many episodes, and whether they are played over the wire.
        seed: seed of the run.
    """
    state_size = getattr(module, "state_size", 0)
    with snapshot(model, module, example_inputs(spaces, state_size)) as policy:
        config = PolicyConfig(state_size=state_size, spaces=spaces.described())
        is_here = not goal.evaluate_over_the_wire and plays_here(environment)
        play = evaluate_here if is_here else evaluate
        episodes = goal.evaluation_episodes
        return play(policy, environment, episodes, seed=seed + EVALUATION_SEED, config=config)


def plays_here(environment: str | EnvironmentSpec) -> bool:
    """Return whether an environment is evaluated in this process.

    Gymnasium's own are, which cannot take this process with them, and those that perhaps no other
    process knows: ids that this one has registered, and what the running program itself defines.
    Others keep a process of their own, and so do Atari games, whose actions are drawn by each
    session.

    Args:
        environment: a Gymnasium id, or how it is made.
    """
    spec = EnvironmentSpec.of(environment)
    if spec.is_atari or spec.stepping != "worker":
        return False
    if any(map(is_of_program, (spec.environment, *spec.wrappers))):
        return True
    if not all(wrapper.startswith("gymnasium.") for wrapper in spec.wrappers):
        return False
    known = gymnasium.registry.get(resolve(spec.environment))
    if known is None:
        return False
    module = spec.environment.rpartition(":")[0]
    return not module or str(known.entry_point).startswith("gymnasium.envs.")


def evaluate_here(
    model: LocalModel,
    environment: str | EnvironmentSpec,
    episodes: int,
    *,
    seed: int,
    config: PolicyConfig | None = None,
) -> list[float]:
    """Play episodes as `evaluate` does, in this process: the returns are the same bit by bit.

    Args:
        model: policy whose weights do not change meanwhile.
        environment: a Gymnasium id, or how it is made; no Atari game.
        episodes: number of episodes.
        seed: seed of the environments.
        config: what is known of the policy, such as the state of a recurrent one.

    Raises:
        BrayError: the environment failed again and again, or an output does not fit.
    """
    return play_most_likely(
        EnvironmentSpec.of(environment).with_limit(),
        model,
        episodes,
        num_envs=NUM_ENVS,
        seed=seed,
        config=replace(config or PolicyConfig(), deterministic=True, phase="evaluation"),
    )


def evaluate(
    model: ModelProtocol,
    environment: str | EnvironmentSpec,
    episodes: int,
    *,
    seed: int,
    config: PolicyConfig | None = None,
) -> list[float]:
    """Play episodes against `model` from a gamecore process; return their returns.

    The policy takes its most likely actions; those of Atari games are drawn, as in training.

    Args:
        model: policy whose weights do not change meanwhile.
        environment: a Gymnasium id, or how it is made.
        episodes: number of episodes, shared out to the environments beforehand, so that short
            ones are not preferred.
        seed: seed of the environments.
        config: what is known of the policy, such as the state of a recurrent one.

    Raises:
        BrayError: the gamecore failed; carries its last words.
        DeadlineError: there was no step for ten minutes.
    """
    # In many games a life waits for fire: a policy that never prefers it would never end.
    spec = EnvironmentSpec.of(environment).with_limit()
    config = replace(config or PolicyConfig(), deterministic=not spec.is_atari, phase="evaluation")
    lanes = LaneBarrier(model, map(str, range(min(NUM_ENVS, episodes))), plays_on=False)
    server = ServerThread(PolicyActor.factory(model, config, lanes=lanes))
    try:
        return _play_in_process(spec, server, episodes, seed)
    finally:
        server.close()


def _play_in_process(
    spec: EnvironmentSpec, server: ServerThread, episodes: int, seed: int
) -> list[float]:
    """Play episodes against a server from a process that ends with them; return their returns."""
    command = [*module_command("bray_actor.gamecores.gamecore"), "--make", spec.to_json()]
    command += ["--address", server.addresses[0], "--episodes", str(episodes), "--json"]
    command += ["--num-envs", str(NUM_ENVS), "--seed", str(seed)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C reaches this process, which ends it
    ) as process:
        try:
            said, errors = _wait(process, server)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BrayError(f"evaluation: the gamecore failed: {errors.strip()[-500:]}")
    return [float(value) for value in json.loads(said)["returns"]]


def _wait(process: subprocess.Popen[str], server: ServerThread) -> tuple[str, str]:
    """Return what a process says until it ends. Raises DeadlineError: it asks nothing any more."""
    asked, asked_s = 0.0, time.monotonic()
    while True:
        try:
            return process.communicate(timeout=_LOOK_S)
        except subprocess.TimeoutExpired:
            before, asked = asked, server.stats()["requests"]
        if asked > before:
            asked_s = time.monotonic()
        elif time.monotonic() - asked_s > _SILENT_S:
            raise DeadlineError(
                f"evaluation: the environment took no step for {_SILENT_S:.0f} s"
            ) from None


def evaluate_teams(
    model: ModelProtocol, environment: TeamEnvironment, *, by: str, seed: int
) -> list[float]:
    """Play one episode of each team; return the teams' returns.

    Args:
        model: policy whose weights do not change meanwhile.
        environment: environment of as many teams as there shall be episodes; closed in the end.
        by: output of which the greatest says the action: `[R, A]`, or `[R, M, A]` of joint actions.
        seed: seed of the task.
    """
    try:
        returns = run_to_end(_play_teams(model, environment, by, seed))
    finally:
        environment.close()
    return [float(value) for value in returns[:: environment.rows_per_team]]


async def _play_teams(
    model: ModelProtocol, environment: TeamEnvironment, by: str, seed: int
) -> npt.NDArray[np.float64]:
    observation, _ = environment.reset(seed=seed)
    returns = np.zeros(environment.num_envs)
    is_playing = np.ones(environment.num_envs, bool)
    while True:
        answer = await model.infer(observation, batch=True)
        step = environment.step(answer.outputs[by].argmax(-1))
        observation, reward, terminated, truncated, _ = step
        returns += np.where(is_playing, reward, 0.0)
        ended = terminated | truncated
        is_playing &= ~ended
        if not is_playing.any():
            return returns
        if ended.any():  # those play on, uncounted
            observation, _ = environment.reset(options={"reset_mask": ended})
