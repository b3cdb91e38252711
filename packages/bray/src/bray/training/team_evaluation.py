"""Evaluation of teams: whole episodes side by side, by each agent's best action."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt

from bray_actor.runners.team_environments import TeamEnvironment
from bray_core.protocols import ModelProtocol


def evaluate_teams(
    model: ModelProtocol, environment: TeamEnvironment, *, by: str, seed: int
) -> list[float]:
    """Play one episode of each team; return the teams' returns.

    Args:
        model: the policy; its weights must not change meanwhile.
        environment: environment of as many teams as there shall be episodes; closed in the end.
        by: output of which the greatest says the action: `[R, A]`, or `[R, M, A]` of joint actions.
        seed: seed of the task.
    """
    try:
        returns = asyncio.run(_play(model, environment, by, seed))
    finally:
        environment.close()
    return [float(value) for value in returns[:: environment.rows_per_team]]


async def _play(
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
