"""`bray search`: look for settings with which a template does well, by Optuna."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.command import Command, is_setting, whole_number

if TYPE_CHECKING:
    from bray.searching.results import SearchedTrial, SearchResult

_EXAMPLES = """examples:
  bray search walker.yaml trainer.learning_rate=1e-4..1e-2:log --trials 50
  bray search ppo CartPole-v1 learning_rate=1e-4..1e-2:log num_envs=4|8|16 --jobs 4
  bray search cartpole trainer.epochs=1..20 --frames 20000 --pruner none

ranges: a..b, a..b:log (its logarithm is drawn evenly), a..b:int (whole numbers), a|b|c
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what", help="a template's name (cartpole), a YAML file, a trial, or an algorithm (ppo)"
    )
    parser.add_argument(
        "task", nargs="?", help="after an algorithm: what is played, such as a Gymnasium id"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings, such as num_envs=8, and ranges, such as learning_rate=1e-4..1e-2:log",
    )
    parser.add_argument(
        "--trials", type=int, default=50, help="trials of the whole search; by default 50"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="trials that run at the same time; by default 1"
    )
    parser.add_argument(
        "--sampler",
        choices=("tpe", "random", "gp", "grid"),
        default="tpe",
        help="what chooses settings: tpe and gp learn from earlier trials, grid tries all choices",
    )
    parser.add_argument(
        "--pruner",
        choices=("median", "halving", "hyperband", "none"),
        default="median",
        help="what ends trials early that do worse than others did, by their evaluations",
    )
    parser.add_argument(
        "--evaluations",
        type=int,
        default=10,
        help="evaluations of a trial at equal distances; by default 10",
    )
    parser.add_argument("--sampler-seed", type=int, default=1, help="seed of the sampler")
    parser.add_argument("--goal", type=float, help="mean return that ends a trial")
    parser.add_argument("--frames", type=whole_number, help="environment steps of a trial")
    parser.add_argument("--episodes", type=int, help="episodes of an evaluation; by default 100")
    parser.add_argument("--seed", type=int, help="seed of every trial")
    parser.add_argument(
        "--folder", type=Path, help="folder of the search; by default searches/NAME"
    )
    parser.add_argument(
        "--runtime",
        choices=("local", "ray"),
        default="local",
        help="where the parts of a trial run: its process, or workers on a Ray cluster",
    )
    parser.add_argument("--address", help="of a running Ray cluster; by default one for each trial")
    parser.add_argument(
        "--json", action="store_true", help="print the result as one JSON document, nothing else"
    )


def _run(options: argparse.Namespace) -> int:
    from bray.searching.config import SearchOptions
    from bray.searching.program import search_plan
    from bray.searching.search import run_search
    from bray.trained.programs import overrides_of

    task, settings = options.task, options.overrides
    if task is not None and is_setting(task):  # what looks like a task is a setting
        task, settings = None, [task, *settings]
    given = overrides_of(
        {},
        goal=options.goal,
        frames=options.frames,
        episodes=options.episodes,
        seed=options.seed,
    )
    config = SearchOptions(
        trials=options.trials,
        jobs=options.jobs,
        sampler=options.sampler,
        pruner=options.pruner,
        evaluations=options.evaluations,
        seed=options.sampler_seed,
        runtime=options.runtime,
        address=options.address,
    )
    plan = search_plan(options.what, task, [*settings, *given], config, options.folder)
    told = _Told(plan.most)
    if not options.json:
        _say(f"{plan.folder}: {plan.most} trials, {config.jobs} at a time; Ctrl-C stops, and the")
        _say("same command goes on")
    result = run_search(plan, (lambda trial, is_best: None) if options.json else told)
    if options.json:
        _say(json.dumps(result.to_json()))
    else:
        _say(_report(result))
    return 0 if result.best is not None else 1


class _Told:
    """Prints a line for each trial that ends or is refused."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._refused = 0

    def __call__(self, trial: SearchedTrial, is_best: bool) -> None:
        from bray.searching.results import in_words

        settings = " ".join(f"{key}={in_words(one)}" for key, one in trial.settings.items())
        if trial.state in ("failed", "refused"):
            words = f"{trial.state}: {trial.error.splitlines()[0] if trial.error else ''}"
        else:
            words = "return " + ("–" if trial.value is None else f"{trial.value:,.6g}")
            words += f" after {trial.frames:,} frames" + ", pruned" * (trial.state == "pruned")
        words += ", the best so far" * is_best
        # A number that was refused is none of the trials that were asked for.
        self._refused += trial.state == "refused"
        last = max(self._most + self._refused, trial.number + 1)
        _say(f"{trial.trial} of {last}: {settings}: {words}")


def _report(result: SearchResult) -> str:
    best = result.best
    if best is None:
        return f"{result.folder}: no trial has ended with a return"
    second = next((one.trial for one in result.ranked[1:]), None)
    lines = ["", result.table(), ""]
    if result.importances:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in result.importances.items())
        lines += [f"what the return depends on: {shares}", ""]
    words = ", ".join(
        f"{count} {state}"
        for state in ("complete", "pruned", "failed", "refused")
        if (count := result.count(state))
    )
    lines.append(f"{len(result.trials)} trials: {words}. Try next:")
    shown = [(f"bray train {result.best_template}", "train with the best settings")]
    if second is not None:
        pair = f"{result.folder / best.trial} {result.folder / second}"
        shown.append((f"bray trials compare {pair}", "what differs"))
    shown += [
        (f"bray view {result.folder}", "all trials as curves and a table"),
        (f"optuna-dashboard sqlite:///{_database(result)}", "Optuna's own pages"),
    ]
    width = max(len(command) for command, _ in shown)
    return "\n".join([*lines, *(f"  {command:{width}}  {words}" for command, words in shown)])


def _database(result: SearchResult) -> Path:
    from bray.searching.results import DATABASE

    return result.folder / DATABASE


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


search = Command(
    "search", "search for settings with which a template does well", _add_arguments, _run
)
