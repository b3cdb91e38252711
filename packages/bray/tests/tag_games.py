"""Games of simple_tag between policies of a trial and chance, and what each side got."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bray.composition.evaluation import EvaluationGames, returns_of
from bray.composition.loaded import player_of
from bray.games.named_opponents import named_opponent
from bray.templates.composition import AgentPart
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.seat import FixedCast

GAMES = 60
"""Games of a comparison: a mean return of the hunters then varies by about 2."""
SPEC = MultiAgentSpec(environment="simple_tag_v3")


def returns(trial: Path, *chance: str, seed: int = 77) -> dict[str, float]:
    """Return the mean return of the hunters and the runner.

    Args:
        trial: Folder of the trial.
        chance: Who moves at random in place of the trained policy: `hunter`, `runner`.
        seed: Seed of the games.
    """
    made = SPEC.make()
    seats = {}
    for agent in made.agents:
        name = "hunter" if agent.startswith("adversary") else "runner"
        part = AgentPart(name=name, model=name, load=str(trial))
        player = "random" if name in chance else player_of(part)
        seat = named_opponent(player, made.spaces(agent), seed=seed)
        seats[agent] = seats.get(name) or replace(seat, name=name)
        seats.setdefault(name, seats[agent])
    made.close()
    cast = FixedCast({agent: seat for agent, seat in seats.items() if "_" in agent})
    results = EvaluationGames(spec=SPEC, number=GAMES, seed=seed).play(cast)
    found = {name: returns_of(results, name) for name in ("hunter", "runner")}
    return {name: sum(values) / len(values) for name, values in found.items()}
