"""What algorithms for teams share: runners play a task, a buffer holds it, one trainer learns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from torch import nn

from bray.goal import Goal, Outcome
from bray.run import Run
from bray.training.device import batch_config, num_gpus
from bray.training.evaluation import EVALUATION_SEED, evaluate_teams, snapshot
from bray.training.loop import Loop, Turn
from bray.training.schedules.scheduled_trainer import ReplayClock, with_schedules
from bray_actor import Runner
from bray_actor.runners.team_environments import TeamEnvironment
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.protocols import TrainerProtocol


def learn(
    run: Run,
    title: str,
    make_teams: Callable[[int], TeamEnvironment],
    module: nn.Module,
    make_trainer: Callable[..., TrainerProtocol],
    experience: BufferConfig | ReplayConfig,
    turn: Turn,
    *,
    by: str,
    num_envs: int,
    num_workers: int,
    lockstep: bool,
    goal: Goal,
    seed: int,
    settings: Any,
) -> Outcome:
    """Make the components and train until the goal is reached or its frames are used up.

    Args:
        run: what makes the components.
        title: shown above the figures.
        make_teams: makes so many teams that play the task.
        module: the policy that acts.
        make_trainer: makes the trainer from the model, the buffer and the checkpoints' folder.
        experience: settings of the buffer.
        turn: order of a local run; its steps are those of a segment.
        by: output of which the greatest says the action in an evaluation.
        num_envs: teams side by side, of one worker.
        num_workers: number of workers on Ray that play.
        lockstep: whether they wait there for each policy version.
        goal: the evaluation's return, and when to give up.
        seed: seed of task and draws.
        settings: the trainer's, with `learning_rate` and `device`.
    """
    with closing(make_teams(num_envs)) as environment:
        example, _ = environment.reset(seed=seed)
        rows, layout = environment.num_envs, environment.layout(turn.steps)
    batching = batch_config(settings, rows, is_local=run.is_local)
    model = run.model("policy", module, example, batching)
    buffer = run.buffer("experience", layout, experience)
    checkpoints = run.experiment.checkpoints

    make = with_schedules(
        make_trainer,
        settings.learning_rate,
        ReplayClock(
            frames_per_replay=turn.steps * rows * (num_workers if lockstep else 1) / turn.replays,
            warmup_frames=turn.warmup_frames,
        ),
    )

    def play(worker: int) -> Runner:
        environment: Any = make_teams(num_envs)
        return Runner(environment, model, buffer, seed=seed + 1000 * worker)

    def evaluate() -> list[float]:
        with snapshot(model, module, example) as policy:
            teams = make_teams(goal.evaluation_episodes)
            return evaluate_teams(policy, teams, by=by, seed=seed + EVALUATION_SEED)

    return Loop(
        run,
        title,
        model=model,
        trainer=run.trainer(
            "trainer",
            partial(make, model, buffer, checkpoints),
            num_gpus=num_gpus(settings),
        ),
        source=run.rollouts(
            "rollouts", play, steps=turn.steps, lockstep=lockstep, num_workers=num_workers
        ),
        turn=turn.after(int(buffer.stats()["queued"])) if run.is_local else turn,
        goal=goal,
        evaluate=evaluate,
    ).until_goal()
