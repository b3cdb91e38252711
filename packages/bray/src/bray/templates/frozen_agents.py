"""What a template may say of agents that never learn: scripts, and policies that were loaded."""

from __future__ import annotations

from typing import Any

from bray.templates.wires import Wires
from bray.templates.written_parts import PLURALS, WrittenParts
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces


def check_frozen(written: WrittenParts, wires: Wires) -> None:
    """Refuse what cannot be played by those who never learn, and spaces that are none.

    Args:
        written: the template; takes what is wrong.
        wires: its wires.
    """
    frozen = [name for name, model in wires.agents.items() if wires.trainer_of(model) is None]
    for name in frozen:
        if name in wires.model_of:  # figures are told by the names of trainers and of such agents
            words = f"expected another name than that of trainers.{name}, which does not train it"
            written.refuse(f"agents.{name}", words)
    _check_matches(written, wires, frozen)
    for source in wires.players:
        _check_roles(written, wires, source)
    for name in written.names("model"):
        _check_spaces(written, "model", name)
    for name, model in wires.agents.items():
        if model is None:
            _check_spaces(written, "agent", name)
        elif written.setting("agent", name, "spaces") is not None:
            words = f"expected with `play` alone: write it as models.{model}.spaces"
            written.refuse(f"agents.{name}.spaces", words)


def _check_matches(written: WrittenParts, wires: Wires, frozen: list[str]) -> None:
    """Refuse who never learns as a player of matches: there the opponents are drawn."""
    for source, players in wires.players.items():
        for pattern, agent in players.items():
            if wires.kinds[source] == "matches" and agent in frozen:
                words = "expected an agent that learns: a rule draws the opponents of matches"
                written.refuse(
                    f"sources.{source}.agents.{pattern}",
                    f"{words}, got {agent!r}: `kind: agents` seats it in each game",
                )


def _check_roles(written: WrittenParts, wires: Wires, source: str) -> None:
    """Refuse roles of a league of those who do not learn."""
    opponents = written.mapping("source", source, "opponents")
    roles = opponents.get("roles")
    learning = [name for name, model in wires.agents.items() if wires.trainer_of(model)]
    for name in roles if isinstance(roles, dict) else ():
        key = f"sources.{source}.opponents.roles.{name}"
        written.is_known(key, name, learning, "an agent that learns")


def _check_spaces(written: WrittenParts, kind: str, name: str) -> None:
    told: Any = written.setting(kind, name, "spaces")
    if not isinstance(told, dict):
        return  # the loader says so where it is something else
    key = f"{PLURALS[kind]}.{name}.spaces"
    try:
        Spaces.parse(key, told)
    except ConfigError as error:
        where, _, words = str(error).partition(": ")
        written.refuse(key, words if where.startswith(key) else str(error))
