"""Games of a trial's policies that people look at: a video, or text where a game is written."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bray.composition.loaded import export_among, player_of
from bray.composition.match_seating import MatchSeating
from bray.composition.part_errors import PartNames, errors_of
from bray.composition.team_games import games_spec
from bray.games.exported_opponents import ExportedOpponents
from bray.games.named_opponents import named_opponent
from bray.games.side_groups import SideGroup, group_of, group_of_side
from bray.sources.multi_agent_config import MatchesSourceConfig, MultiAgentSourceConfig
from bray.templates.composition import AgentPart, Composition, SourcePart
from bray.trained.agent import export_of
from bray.trained.decisions import described
from bray.trained.drawing import Drawing, drawn
from bray.trained.play_recorder import PlayRecorder
from bray_actor.environments.spec import MOST_STEPS
from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.game_in_play import GameInPlay
from bray_actor.multi_agent.making import OPEN_SPIEL, MultiAgentSpec
from bray_actor.multi_agent.seat import Cast, FixedCast, GameResult, Seat
from bray_actor.multi_agent.seat_batch import SeatBatches
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import EPISODES
from bray_core.process.running_loop import run_to_end
from bray_core.settings.choice import check_choice
from bray_core.settings.ranges import PositiveInt, check_value

POSITIONS_PER_S = 2.0
"""Speed at which games of turns are shown again."""


@dataclass(frozen=True, slots=True)
class PlayedGames:
    """How some games ended."""

    results: tuple[GameResult, ...]
    """The games, in their order."""

    def __str__(self) -> str:
        """Say it in words."""
        means = ", ".join(
            f"{agent} ({self.results[0].seats[agent]}) {self._mean(agent):.2f}"
            for agent in self.results[0].seats
            if any(agent in one.returns for one in self.results)
        )
        played = f"{len(self.results)} game{'s'[: len(self.results) != 1]}"
        return f"mean returns: {means}; over {played}"

    def _mean(self, agent: str) -> float:
        return float(np.mean([one.returns[agent] for one in self.results if agent in one.returns]))


def games_of(composition: Composition, source: str | None) -> SourcePart | None:
    """Return the source of games that is watched; None: one agent plays alone in all of them.

    Args:
        composition: what was trained.
        source: its name; None: that in which the goal's learner plays, else the first.

    Raises:
        ConfigError: there is none of that name, or simulators play it.
    """
    if source is not None:
        check_choice("source", source, list(composition.sources))
        found = [composition.sources[source]]
    else:
        games = composition.sources.values()
        main = composition.main.name
        found = [one for one in games if isinstance(one.config, MultiAgentSourceConfig)]
        found.sort(key=lambda one: not _plays(composition, one, main))
    if not found or not isinstance(found[0].config, MultiAgentSourceConfig):
        return None
    if found[0].config.is_simulator:
        raise ConfigError(
            f"sources.{found[0].name}: simulators play it, which draw themselves: let one call "
            "`bray serve`, or see recorded episodes with `bray view`"
        )
    return found[0]


def _plays(composition: Composition, source: SourcePart, learner: str) -> bool:
    agents = source.agents.values() or composition.agents
    found = (composition.learner_of(agent) for agent in agents)
    return any(one is not None and one.name == learner for one in found)


def watch_games(
    trial: Path,
    composition: Composition,
    source: SourcePart,
    *,
    episodes: int,
    seed: int,
    save: Path | None,
    against: str | None = None,
    sample: bool = False,
    say: Callable[[str], Any],
) -> PlayedGames:
    """Play games of a trial's policies; draw them into a video, or tell them as text.

    Args:
        trial: folder of the trial, with the exports.
        composition: what was trained.
        source: what is played.
        episodes: number of games.
        seed: seed of the environment and the draws.
        save: file of the video; None: `watch.gif` in the trial, or text where a game is written.
        against: who plays the other sides of a match, in the words of `goal.against`; None: the
            trial's own policies.
        sample: whether actions are drawn, instead of the most likely ones.
        say: takes a game as text, position by position.

    Raises:
        ConfigError: the game draws nothing, an agent has no policy, or `against` is said of games
            without sides.
        NotFoundError: a policy was not exported.
    """
    check_value("episodes", episodes, PositiveInt)
    if against is not None and not _is_match(source):
        raise ConfigError(
            f"against: expected with a source of matches, got {against!r} with {source.name}, "
            "whose agents are played by the policies that were trained"
        )
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen all the same
    with ExitStack() as stack:
        environment = _drawing(games_spec(composition, source))
        stack.callback(environment.close)
        exports = ExportedOpponents()
        stack.callback(exports.close)
        seats = _Seats(trial, composition, environment, exports, sample, seed)
        cast = seats.of_match(source, against) if _is_match(source) else seats.of_agents(source)
        drawing = Drawing(save, trial / "watch.gif", say)
        results = run_to_end(_play(environment, cast, episodes, seed, drawing, trial / EPISODES))
        drawing.finish()
    return PlayedGames(tuple(results))


def _is_match(source: SourcePart) -> bool:
    return isinstance(source.config, MatchesSourceConfig)


def _drawing(spec: MultiAgentSpec) -> MultiAgentEnvironment:
    """Make the environment so that it draws: an image, else text, else in its own way."""
    takes_modes = not spec.environment.startswith(OPEN_SPIEL)
    for mode in ("rgb_array", "ansi") if takes_modes else ():
        kwargs = {**spec.kwargs, "render_mode": mode}
        try:
            with warnings.catch_warnings(action="ignore"):
                made = replace(spec, kwargs=kwargs).make()
        except ConfigError:
            continue
        if _draws(made):
            return made
        made.close()
    return spec.make()


def _draws(environment: MultiAgentEnvironment) -> bool:
    environment.reset(0)
    try:
        return drawn(environment) is not None
    except Exception:  # noqa: BLE001  the boundary to code of others, which knows another mode
        return False


async def _play(
    environment: MultiAgentEnvironment,
    cast: Cast,
    episodes: int,
    seed: int,
    drawing: Drawing,
    record: Path,
) -> Sequence[GameResult]:
    """Play games one after the other; draw each position, and keep it in the folder `record`."""
    batches = SeatBatches()
    game = GameInPlay(environment, 0, cast, batches, seed=seed, record_of=lambda _: None)
    results = []
    for number in range(episodes):
        game.begin(seed + number)
        recorder = PlayRecorder(record, f"watched {seed + number}", POSITIONS_PER_S)
        found = drawing.add(environment)
        while not game.is_over and game.num_rounds < MOST_STEPS:
            await batches.act(game.acting)
            recorder.tick(found, {"agents": _decisions(game)})
            if not game.step():
                break
            found = drawing.add(environment)
        results.append(game.result())
        returns = {agent: float(one) for agent, one in results[-1].returns.items()}
        recorder.finish(found, {"terminated": game.is_over, "returns": returns})
    return results


def _decisions(game: GameInPlay) -> dict[str, Any]:
    """Return what each agent that acts has decided, by its name."""
    return {
        agent: {"policy": player.seat.name, **described(player.action, player.outputs)}
        for (_, agent), player in game.acting
    }


class _Seats:
    """Finds who plays: the trial's exports, scripts, and policies that were loaded."""

    def __init__(
        self,
        trial: Path,
        composition: Composition,
        environment: MultiAgentEnvironment,
        exports: ExportedOpponents,
        sample: bool,
        seed: int,
    ) -> None:
        self._trial = trial
        self._composition = composition
        self._environment = environment
        self._exports = exports
        self._sample = sample
        self._seed = seed

    def of_agents(self, source: SourcePart) -> Cast:
        """Return the policies of an environment's agents, as they were trained."""
        from bray.composition.roster import Roster

        roster = Roster(composition=self._composition, agents={})
        return FixedCast(
            {
                agent: self._of(roster.part_of(source, agent), agent)
                for agent in self._environment.agents
            }
        )

    def of_match(self, source: SourcePart, against: str | None) -> Cast:
        """Return the policies of a match: the goal's first, then who else may play each side, or
        `against`."""
        seating = self._seating(source)
        main = self._composition.main.name
        if not any(main in group.learners for group in seating.groups):
            main = seating.groups[0].learners[0]
        mine = group_of(seating.groups, main).sides[0]
        found: dict[str, Seat] = {}
        places: Counter[SideGroup] = Counter()
        for side, agents in seating.sides.items():
            group = group_of_side(seating.groups, side)
            others = [one for one in group.learners if one != main]
            order = [*others, main] if main in group.learners else others
            name = main if side == mine else order[places[group] % len(order)]
            places[group] += side != mine
            for agent in agents:
                if side == mine or against is None:
                    found[agent] = self._learner(name)
                else:
                    found[agent] = self._against(against, agent, group, seating)
        return FixedCast(found)

    def _seating(self, source: SourcePart) -> MatchSeating:
        from bray.composition.roster import Roster

        spaces = {agent: self._environment.spaces(agent) for agent in self._environment.agents}
        roster = Roster(composition=self._composition, agents={source.name: spaces})
        with errors_of(PartNames.of_source(source)):
            return roster.seating(source)

    def _against(self, against: str, agent: str, group: SideGroup, seating: MatchSeating) -> Seat:
        part = self._composition.agents.get(against)
        if part is None:
            if against and Path(against).is_dir():
                models = [self._composition.learners[one].model for one in group.learners]
                against = str(export_among(Path(against), models))
            return self._named(against, agent)
        learner = self._composition.learner_of(part.name)
        if learner is not None and learner.name in seating.learners - {*group.learners}:
            raise ConfigError(
                f"against: expected who may play {agent}, such as {', '.join(group.learners)} or "
                f"random, got {against!r}"
            )
        return self._of(part, agent)

    def _of(self, part: AgentPart, agent: str) -> Seat:
        learner = self._composition.learner_of(part.name)
        if learner is not None:
            return self._learner(learner.name)
        return replace(self._named(player_of(part), agent), name=part.name)

    def _named(self, name: str, agent: str) -> Seat:
        spaces = self._environment.spaces(agent)
        return named_opponent(name, spaces, seed=self._seed, exports=self._exports)

    def _learner(self, name: str) -> Seat:
        export = export_of(self._trial, self._composition.learners[name].model)
        seat = self._exports.seat(export)
        config = replace(seat.config, phase="played")
        if self._sample:
            config = replace(config, deterministic=False)
        return replace(seat, name=name, config=config)
