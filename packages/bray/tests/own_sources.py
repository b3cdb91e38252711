"""Sources of one's own, as tests name them: whole ones, and ones that lack something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import race_game

from bray.sources.environments import make_environments, read_spaces
from bray.sources.source_kind import SourceKind, SourceKindConfig
from bray_actor import Runner
from bray_actor.multi_agent.playing import play_games
from bray_actor.multi_agent.runner import MultiAgentRunner
from bray_actor.multi_agent.seat import FixedCast, Seat
from bray_core.errors import ConfigError
from bray_core.settings.ranges import PositiveInt
from bray_core.spaces import Spaces


class DuelSource(SourceKind[Any]):
    """Races of two agents."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config(SourceKindConfig):
        """Settings of a race."""

        goal_line: PositiveInt = 4
        """Steps that win a race. 2 to 20."""

        def __post_init__(self) -> None:
            SourceKindConfig.__post_init__(self)
            if self.goal_line > 20:
                raise ConfigError(f"goal_line: expected at most 20, got {self.goal_line}")

    def spaces(self) -> Mapping[str, Spaces]:
        return dict.fromkeys(race_game.Race.agents, race_game.SPACES)

    def runner(
        self, seats: Mapping[str, Seat], *, quotas: Mapping[str, int], seed: int, worker: int
    ) -> Any:
        games = [race_game.Race() for _ in range(self.config.num_envs)]
        return MultiAgentRunner(games, FixedCast(seats), seed=seed, quotas=quotas)

    def evaluate(
        self, seats: Mapping[str, Seat], *, agents: Sequence[str], episodes: int, seed: int
    ) -> Sequence[float]:
        results = play_games([race_game.Race()], FixedCast(seats), episodes, seed, max_steps=99)
        return [float(np.mean([one.returns[agent] for agent in agents])) for one in results]


class PoleSource(SourceKind[SourceKindConfig]):
    """One player, whose runner does not say whose steps they were."""

    def spaces(self) -> Mapping[str, Spaces]:
        return {"player": read_spaces("CartPole-v1")}

    def runner(
        self, seats: Mapping[str, Seat], *, quotas: Mapping[str, int], seed: int, worker: int
    ) -> Any:
        (seat,) = seats.values()
        assert seat.buffer is not None
        environments = make_environments("CartPole-v1", self.config.num_envs)
        return Runner(environments, seat.model, seat.buffer, seed=seed, gamma=seat.config.gamma)


class SilentSource(DuelSource):
    """A duel whose runner never says whose steps it played."""

    def runner(self, seats: Mapping[str, Seat], **play: Any) -> Any:
        return _Silent(super().runner(seats, **play))


class _Silent:
    def __init__(self, runner: Any) -> None:
        for name in ("run", "cut", "next_version", "take_returns", "take_results", "close"):
            setattr(self, name, getattr(runner, name))


class NoRunnerSource(DuelSource):
    """A source that makes something else."""

    def runner(self, seats: Mapping[str, Seat], **play: Any) -> Any:
        return object()


class ListedSource(PoleSource):
    """A source whose spaces have no names."""

    def spaces(self) -> Any:
        return [read_spaces("CartPole-v1")]


class RawSource(PoleSource):
    """A source whose spaces are something else."""

    def spaces(self) -> Any:
        return {"player": 4}


class HalfSource(SourceKind[SourceKindConfig]):
    """A source that plays nothing."""

    def spaces(self) -> Mapping[str, Spaces]:
        return {"player": read_spaces("CartPole-v1")}


class PlainConfigSource(PoleSource):
    """A source whose settings are no dataclass."""

    class Config(SourceKindConfig):
        """Settings without a decorator."""

        width: int = 3


class ForeignConfigSource(PoleSource):
    """A source whose settings are not derived from those of all sources."""

    Config: ClassVar[Any] = dict


class TakenNameSource(PoleSource):
    """A source with a setting whose name means something else."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config(SourceKindConfig):
        """Settings with the name of a wire."""

        agents: int = 3


class UncalledSource(PoleSource):
    """A source whose runner cannot be told its worker."""

    def runner(self, seats: Any, *, quotas: Any, seed: int) -> Any:  # type: ignore[override]
        return super().runner(seats, quotas=quotas, seed=seed, worker=0)


class UnjudgedSource(PoleSource):
    """A source that evaluates in a way of its own."""

    def evaluate(self, seats: Any, episodes: int) -> Any:  # type: ignore[override]
        return [1.0]


class NotASource:
    """A class of another kind."""
