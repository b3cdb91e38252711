"""Which algorithms learn side by side, and in which sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray.templates.wires import Wires
from bray.templates.written_parts import WrittenParts
from bray.training.algorithm import Algorithm
from bray.training.off_policy.offline import Offline
from bray.training.recorded_policy import RecordedPolicy
from bray.training.team_policy import TeamPolicy

Algorithms = Mapping[str, type[Algorithm[Any]]]


def check_learning(written: WrittenParts, wires: Wires, algorithms: Algorithms) -> None:
    """Refuse algorithms that no source of named parts plays for, and sources that do not suit one.

    Args:
        written: the template; takes what is wrong.
        wires: how its parts are joined.
        algorithms: class of each trainer's algorithm, where it is known.
    """
    for name, algorithm in algorithms.items():
        if issubclass(algorithm, Offline):
            _check_offline(written, wires, algorithms, name)
        elif issubclass(algorithm, TeamPolicy):
            _check_team(written, wires, algorithm, name)
        elif not issubclass(algorithm, RecordedPolicy):
            told = str(written.text("trainer", name, "algorithm"))
            written.refuse(
                f"trainers.{name}.algorithm",
                f"{told!r} does not learn side by side with others, nor in games of several "
                f"agents: {_why_alone(algorithm)}; {_alone(told, algorithm)}, or choose one that "
                "is sampled from, such as ppo, impala, dqn or sac",
            )


def _check_team(
    written: WrittenParts, wires: Wires, algorithm: type[TeamPolicy[Any]], name: str
) -> None:
    """Refuse sources that do not tell a team what it learns from."""
    for source, kind in wires.kinds.items():
        if name not in wires.trainers_in(source):
            continue
        calls = [one for one in ("command", "external") if written.setting("source", source, one)]
        if kind == "agents" and not calls:
            continue
        key, got = (calls[0], calls[0]) if kind == "agents" else ("kind", f"kind {kind}")
        written.refuse(
            f"sources.{source}.{key}",
            f"expected kind agents with an `environment` for {algorithm.title} (trainers.{name}), "
            f"got {got}: it learns from rows of a whole team, which only environments whose agents "
            "act at once tell",
        )


def _check_offline(written: WrittenParts, wires: Wires, algorithms: Algorithms, name: str) -> None:
    """Refuse an algorithm that records nothing where nobody else does."""
    for source, kind in wires.kinds.items():
        learning = wires.trainers_in(source)
        if name not in learning:
            continue
        others = [n for n in learning if n in algorithms and not _is_offline(algorithms[n])]
        if kind != "agents" or not others:
            written.refuse(
                f"sources.{source}",
                f"expected kind agents, with another policy that learns from play, got kind "
                f"{kind}: {algorithms[name].title} (trainers.{name}) learns from its data set, and "
                "records nothing of what it plays: train it alone, or beside others",
            )


def _is_offline(algorithm: type[Algorithm[Any]]) -> bool:
    return issubclass(algorithm, Offline)


def _alone(told: str, algorithm: type[Algorithm[Any]]) -> str:
    """Return how an algorithm is trained by itself, as it is written."""
    task = {"games": "connect-four", "environments": "CartPole-v1"}.get(algorithm.takes.plays)
    if task is None:
        return f"train it alone, in a template with `algorithm: {told}`"
    return (
        f"train it alone: `bray train {told} {task}`, or a template with `algorithm: {told}` and "
        f"`source: {{environment: {task}}}`"
    )


def _why_alone(algorithm: type[Algorithm[Any]]) -> str:
    """Return why no source of named parts plays for an algorithm."""
    if algorithm.takes.plays == "games":
        return "it plays by a search through the game's rules, not by asking its policy"
    if algorithm.pacing == "population":
        return "each of its episodes is played by other weights, all of one version"
    return "it plays by itself"
