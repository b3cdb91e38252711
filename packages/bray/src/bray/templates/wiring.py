"""Who trains what, who plays where, and what flows into what: the wires of a template, resolved.

Wires that are not written have defaults; those that lead nowhere, and parts that none leads to, are
problems, of which all are found at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bray.sources.opponents_config import OPPONENTS, is_opponent_name
from bray.templates.buffer_wiring import BufferWiring
from bray.templates.frozen_agents import check_frozen
from bray.templates.part_settings import is_script_name
from bray.templates.wires import EXPERIENCE, Wires, inputs_of
from bray.templates.written_parts import WrittenParts
from bray.training.algorithm import Algorithm
from bray_core.settings.choice import closest


class Wiring:
    """Resolves the wires.

    Args:
        written: the template.
        algorithms: class of each trainer's algorithm, where it is known.
    """

    def __init__(self, written: WrittenParts, algorithms: dict[str, type[Algorithm[Any]]]) -> None:
        self._written = written
        self._algorithms = algorithms
        self._wires = Wires()
        self._models = written.names("model")
        self._buffers = written.names("buffer")
        self._is_astray = False  # whether a source names an agent that there is not
        self._flow = BufferWiring(written, self._wires)
        self._loaded = [n for n in self._models if written.setting("model", n, "load") is not None]

    def resolve(self) -> Wires:
        """Return the wires; problems go to what was written."""
        if self._written.is_absent("trainer"):
            self._written.refuse(
                "trainers", "missing: expected a trainer, {policy: {algorithm: ppo}}"
            )
        if self._written.is_absent("source"):
            self._written.refuse("sources", "missing: expected what is played, {game: {...}}")
        for name in self._written.names("trainer"):
            self._wire_trainer(name)
        self._wire_agents()
        for name in self._written.names("source"):
            self._wire_source(name)
        self._check_matches()
        self._check_actors()
        self._check_models()
        self._check_players()
        check_frozen(self._written, self._wires)
        self._flow.check()
        self._wire_renders()
        self._check_goal()
        return self._wires

    # Trainers.

    def _wire_trainer(self, name: str) -> None:
        model = self._model_of_trainer(name)
        if model is None:
            return
        other = self._wires.trainer_of(model)
        if other is not None:
            self._written.refuse(
                f"trainers.{name}",
                f"trains the model {model!r}, which trainers.{other} trains already: give each a "
                "model of its own",
            )
            return
        if model in self._loaded:
            self._written.refuse(
                f"models.{model}.load",
                f"expected nothing for a model that trainers.{name} trains: what is loaded stays "
                "as it is",
            )
        self._wires.model_of[name] = model
        self._wires.inputs_of[name] = self._inputs(name)

    def _model_of_trainer(self, name: str) -> str | None:
        key = f"trainers.{name}.model"
        told = self._written.setting("trainer", name, "model")
        if told is not None:
            is_there = self._written.is_known(key, told, self._models, "a model")
            return told if is_there else None
        others = [one for one in self._written.names("trainer") if one != name]
        free = [one for one in self._models if one not in (*self._loaded, *others)]
        if name in free or not free:
            return name
        if len(free) > 1:
            self._written.refuse(key, f"missing: expected one of {', '.join(free)}")
            return None
        return free[0]

    def _inputs(self, name: str) -> dict[str, str]:
        """Return the buffers that a trainer reads, by input of its algorithm."""
        key = f"trainers.{name}.inputs"
        found: dict[str, str] = {}
        for given, buffer in self._written.mapping("trainer", name, "inputs").items():
            if self._has_input(name, given) and self._written.is_known(
                f"{key}.{given}", buffer, self._buffers, "a buffer"
            ):
                found[given] = buffer
        own = self._written.setting("trainer", name, "buffer")
        if own is not None:
            if EXPERIENCE in found and own != found[EXPERIENCE]:
                words = f"expected {found[EXPERIENCE]!r}, as inputs.{EXPERIENCE} says, got {own!r}"
                self._written.refuse(f"trainers.{name}.buffer", f"{words}: remove one")
            elif self._written.is_known(f"trainers.{name}.buffer", own, self._buffers, "a buffer"):
                found[EXPERIENCE] = own
        elif self._plays(name) and name in self._buffers and name not in found.values():
            found.setdefault(EXPERIENCE, name)
        return found

    def _plays(self, name: str) -> bool:
        """Return whether a trainer's algorithm learns from what is played."""
        algorithm = self._algorithms.get(name)
        return algorithm is None or EXPERIENCE in inputs_of(algorithm)

    def _has_input(self, name: str, given: str) -> bool:
        """Return whether a trainer's algorithm has an input."""
        algorithm = self._algorithms.get(name)
        if algorithm is None:
            return True  # the algorithm is a problem already
        known = inputs_of(algorithm)
        if given not in known:
            words = f"unknown input of {algorithm.title}{closest(given, known)}"
            self._written.refuse(
                f"trainers.{name}.inputs.{given}", f"{words}; known: {', '.join(known)}"
            )
        return given in known

    # Agents.

    def _wire_agents(self) -> None:
        for name in self._written.names("agent"):
            self._wire_agent(name)
        answering = set(self._wires.agents.values())
        for model in dict.fromkeys([*self._wires.model_of.values(), *self._loaded]):
            if model in answering:
                continue
            if model in self._written.names("agent"):
                words = "no agent is answered by it: write `model: {0}` into one, or remove it"
                self._written.refuse(f"models.{model}", words.format(model))
            else:
                self._wires.agents[model] = model
        for name in self._wires.agents:
            self._flow.wire(name)

    def _wire_agent(self, name: str) -> None:
        play, told = (self._written.setting("agent", name, key) for key in ("play", "model"))
        if play is not None:
            self._check_script(name, play, told)
            self._wires.agents[name] = None
            return
        known = list(dict.fromkeys([*self._models, *self._wires.model_of.values()]))
        key = f"agents.{name}.model"
        if told is not None:
            if self._written.is_known(key, told, known, "a model"):
                self._wires.agents[name] = told
        elif name in known:
            self._wires.agents[name] = name
        elif len(known) == 1:
            self._wires.agents[name] = known[0]
        else:
            choice = f"one of {', '.join(known)}" if known else "a model, of which there is none"
            words = f"missing: expected {choice}, or `play: random`"
            self._written.refuse(key, words)

    def _check_script(self, name: str, play: Any, told: Any) -> None:
        if play not in OPPONENTS and not (isinstance(play, str) and is_script_name(play)):
            known = ", ".join(OPPONENTS)
            words = f"expected {known}, module:function or file.py:function, got {play!r}"
            self._written.refuse(f"agents.{name}.play", f"{words}{closest(str(play), OPPONENTS)}")
        elif told is not None:
            words = f"expected either `play` or `model`, got both: {play!r} and {told!r}"
            self._written.refuse(f"agents.{name}.play", words)

    # Sources.

    def _wire_source(self, name: str) -> None:
        self._wires.kinds[name] = self._kind_of_source(name)
        self._wires.players[name] = self._players(name)
        actors = self._written.names("actor")
        told = self._written.setting("source", name, "actor")
        key = f"sources.{name}.actor"
        found = None
        if told is not None:
            found = told if self._written.is_known(key, told, actors, "an actor") else None
        elif name in actors:
            found = name
        else:
            free = [one for one in actors if one not in self._written.names("source")]
            found = free[0] if len(free) == 1 else None
            if len(free) > 1:
                self._written.refuse(key, f"missing: expected one of {', '.join(free)}")
        self._wires.actor_of[name] = found

    def _kind_of_source(self, name: str) -> str:
        told = self._written.text("source", name, "kind")
        calls = [k for k in ("command", "external") if self._written.setting("source", name, k)]
        if told is None:
            return "gamecores" if calls else "environments"
        if told == "environments" and calls:
            words = "expected with kind gamecores, agents or matches, got kind environments"
            self._written.refuse(f"sources.{name}.{calls[0]}", words)
        return told

    def _players(self, name: str) -> dict[str, str]:
        key = f"sources.{name}.agents"
        known = list(self._wires.agents)
        written = self._written.setting("source", name, "agents")
        if written:
            found = {
                str(pattern): agent
                for pattern, agent in self._written.mapping("source", name, "agents").items()
                if self._written.is_known(f"{key}.{pattern}", agent, known, "an agent")
            }
            is_mapping = isinstance(written, dict)  # the loader says so where it is none
            self._is_astray |= not is_mapping or len(found) < len(written)
            self._check_one_plays(name, found)
            return found
        learning = [n for n in known if self._wires.trainer_of(self._wires.agents[n]) is not None]
        if len(known) == 1 or len(learning) == 1:
            return {"*": (known if len(known) == 1 else learning)[0]}
        if self._wires.kinds[name] != "matches" and known:
            words = f"missing: expected who plays whom, such as {{'*': {known[0]}}}"
            self._written.refuse(key, f"{words}; known: {', '.join(known)}")
        return {}

    def _check_one_plays(self, name: str, players: dict[str, str]) -> None:
        """Refuse several agents in environments of one."""
        kind, playing = self._wires.kinds[name], list(dict.fromkeys(players.values()))
        calls = any(self._written.setting("source", name, k) for k in ("command", "external"))
        if kind in ("environments", "gamecores") and not calls and len(playing) > 1:
            self._written.refuse(
                f"sources.{name}.agents",
                f"expected one agent, got {', '.join(playing)}: one agent plays an environment of "
                f"kind {kind}; games of several are of kind agents or matches",
            )

    def _check_matches(self) -> None:
        """Refuse sources of matches of different learners: a trial has the file of one league."""
        first, *others = [n for n, kind in self._wires.kinds.items() if kind == "matches"] or [""]
        for name in others:
            here, there = self._learning_in(name), self._learning_in(first)
            if here and there and here != there:
                self._written.refuse(
                    f"sources.{name}",
                    f"expected the learners of sources.{first}, {', '.join(sorted(there))}, got "
                    f"{', '.join(sorted(here))}: a trial keeps one league, in which they all play; "
                    "train the others in a trial of their own",
                )

    def _learning_in(self, source: str) -> set[str]:
        """Return the models of those who play in a source of matches and learn."""
        playing = self._wires.players[source].values() or self._wires.agents
        models = {self._wires.agents.get(agent) for agent in playing}
        return {m for m in models if m is not None and self._wires.trainer_of(m) is not None}

    # What leads nowhere.

    def _check_actors(self) -> None:
        for name in self._written.names("actor"):
            if name not in self._wires.actor_of.values():
                self._written.refuse(
                    f"actors.{name}", "no source has it: name it there, or remove it"
                )

    def _check_models(self) -> None:
        answering = set(self._wires.models)
        for name in self._models:
            if name not in answering:
                self._written.refuse(
                    f"models.{name}",
                    f"nobody trains it, and it is not loaded: write trainers.{name}, or "
                    f"models.{name}.load, or remove it",
                )
            elif self._wires.trainer_of(name) is None and name not in self._loaded:
                self._written.refuse(
                    f"models.{name}", "answers, but nobody trains it: write a trainer, or `load`"
                )

    def _check_players(self) -> None:
        """Refuse agents that no source has, and learners who never play."""
        sources = self._wires.players
        if self._is_astray or not all(sources.values()):
            return  # matches of all with all, or a source whose agents are a problem already
        playing = {agent for players in sources.values() for agent in players.values()}
        against = self._goal("against")
        is_matched = "matches" in self._wires.kinds.values()
        for name, model in self._wires.agents.items():
            is_opponent = self._wires.trainer_of(model) is None and (is_matched or name == against)
            if name in playing or is_opponent or not sources:
                continue
            key = f"agents.{name}" if name in self._written.names("agent") else f"models.{name}"
            self._written.refuse(
                key, "nobody plays it: name it in the `agents` of a source, or remove it"
            )

    # Renders and the goal.

    def _wire_renders(self) -> None:
        sources = self._written.names("source")
        for name in self._written.names("render"):
            told = self._written.setting("render", name, "source")
            if told is not None:
                is_there = self._written.is_known(
                    f"renders.{name}.source", told, sources, "a source"
                )
                self._wires.render_of[name] = told if is_there else None
            elif name in sources or len(sources) == 1:
                self._wires.render_of[name] = name if name in sources else sources[0]
            else:
                words = f"missing: expected one of {', '.join(sources)}"
                self._written.refuse(f"renders.{name}.source", words)

    def _goal(self, key: str) -> Any:
        goal = self._written.root.value.get("goal")
        found = goal.value.get(key) if goal is not None and isinstance(goal.value, dict) else None
        return None if found is None else found.value

    def _check_goal(self) -> None:
        agent, against, win_rate = map(self._goal, ("agent", "against", "win_rate"))
        learning = [n for n, m in self._wires.agents.items() if self._wires.trainer_of(m)]
        if agent is not None:
            self._written.is_known("goal.agent", agent, learning, "an agent that learns")
        elif len(self._wires.model_of) > 1:
            words = f"missing: {len(self._wires.model_of)} learn: expected one of"
            self._written.refuse("goal.agent", f"{words} {', '.join(learning)}")
        is_agent = isinstance(against, str) and not is_opponent_name(against)
        if is_agent and not is_script_name(against):
            self._written.is_known("goal.against", against, self._wires.agents, "an agent")
        if against is not None and against == agent:
            self._written.refuse("goal.against", f"expected another agent than goal.agent={agent}")
        kinds = self._wires.kinds.values()
        if win_rate is not None and kinds and not _has_games(kinds):
            self._written.refuse(
                "goal.win_rate",
                "expected with a source of kind matches or agents alone: nobody wins or loses an "
                f"episode of {', '.join(dict.fromkeys(kinds))}",
            )


def _has_games(kinds: Iterable[str]) -> bool:
    """Return whether a source has sides that may win; one that bray does not know may have them."""
    return any(kind not in ("environments", "gamecores") for kind in kinds)
