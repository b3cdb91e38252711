"""A search over settings with Ray Tune: ASHA stops, or PBT replaces, what learns little.

    python -m benchmarks.training.search --scheduler asha --trials 4
    python -m benchmarks.training.search --scheduler pbt --trials 4

Prints each trial's settings, frames and last mean training return, then the best one.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from typing import Any

from benchmarks.harness import Report, argument, main
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from bray.goal import Goal
from bray.tune import trainable
from bray_core.remote.cluster import init_ray, shutdown_ray

_SPACE = {
    "learning_rate": tune.loguniform(1e-5, 1e-2),
    "entropy_coefficient": tune.choice([0.0, 0.01]),
}


def scheduler(kind: str, report_every: int) -> Any:
    """Return what decides about trials when they report."""
    if kind == "asha":
        return ASHAScheduler(time_attr="frames", grace_period=report_every, max_t=1_000_000)
    return PopulationBasedTraining(
        time_attr="frames",
        perturbation_interval=2 * report_every,
        hyperparam_mutations=_SPACE,
        quantile_fraction=0.5,
    )


def benchmark(options: Namespace, report: Report) -> None:
    """Search and print."""
    goal = Goal(
        episode_return=options.goal,
        evaluate_at=options.goal,
        evaluation_episodes=20,
        max_frames=options.max_frames,
    )
    init_ray(num_cpus=options.num_cpus)
    with tempfile.TemporaryDirectory() as storage:
        function = trainable(
            options.algorithm, options.task, goal, report_every=options.report_every
        )
        found = tune.Tuner(
            function,
            param_space=_SPACE,
            tune_config=tune.TuneConfig(
                metric="return",
                mode="max",
                num_samples=options.trials,
                scheduler=scheduler(options.scheduler, options.report_every),
            ),
            run_config=tune.RunConfig(storage_path=storage, name="search", verbose=0),
        ).fit()
        for result in found:
            _print(result)
        print("best:")
        _print(found.get_best_result())
    shutdown_ray()


def _print(result: Any) -> None:
    settings = "  ".join(f"{name} {value:.3g}" for name, value in result.config.items())
    metrics = result.metrics
    evaluated = metrics.get("evaluation_return")
    print(
        f"{settings}  frames {metrics['frames']:,}  return {metrics['return']:.1f}"
        + (f"  evaluation {evaluated:.1f}" if evaluated is not None else "")
    )


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--scheduler", choices=("asha", "pbt"), default="asha"),
        argument("--algorithm", default="ppo"),
        argument("--task", default="CartPole-v1"),
        argument("--goal", type=float, default=475.0),
        argument("--trials", type=int, default=4),
        argument("--max-frames", type=int, default=32_768),
        argument("--report-every", type=int, default=4096),
        argument("--num-cpus", type=int, default=2),
    )
