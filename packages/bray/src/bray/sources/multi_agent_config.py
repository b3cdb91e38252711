"""Settings of sources in which several agents play: environments, board games, simulators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from bray.sources.config import PlaysNoAtari, check_one_kind, title_of
from bray.sources.curriculum import check_curriculum
from bray.sources.opponents_config import OpponentsConfig
from bray_actor.environments.spec import located_code
from bray_actor.environments.spec_text import short_name
from bray_actor.episodes import check_names
from bray_actor.gamecores.simulators import command_words
from bray_core.errors import ConfigError
from bray_core.process.user_modules import check_code_name
from bray_core.settings.ranges import PositiveInt, check_fields
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiAgentSourceConfig(PlaysNoAtari):
    """Games of several agents, stepped in the workers, or by simulators of your own."""

    environment: str = ""
    """What is played: a module of PettingZoo (`simple_tag_v3`, `connect_four_v3`), a function or
    class of yours that returns such an environment (`module:function`, `file.py:Class`), or a game
    of OpenSpiel (`open_spiel:leduc_poker`). A simulator of your own has a `command` instead, or is
    `external`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the environment is made with, such as `{num_adversaries: 3}`."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, the innermost first: `module:function` or
    `file.py:function`, called with the environment, such as `supersuit:frame_skip_v0`."""
    num_envs: PositiveInt = 16
    """Games side by side of each worker. More of them make larger batches, which cost less a step,
    and experience that is less alike. 8 to 64."""
    command: str | None = None
    """What starts a simulator of your own, such as `./game --port {port} --seed {seed}`; names in
    braces: address, host, port, http_port, seed, phase, lanes, first_lane, index."""
    external: bool = False
    """Whether simulators of your own, started by you, call the run's port."""
    count: PositiveInt = 1
    """Processes of the command."""
    lanes: PositiveInt = 1
    """Sessions that one process of the simulator plays side by side, those of all agents counted;
    of external ones all together."""
    spaces: Mapping[str, Any] | None = None
    """What the agents of a simulator see and take, the same for all: `{observation: {shape: [3]},
    action: {discrete: 3}}`. None: those of the models, else the first `start` tells."""
    info_metrics: tuple[str, ...] = ()
    """Keys of the agents' infos when their episodes end that are metrics, such as `[success]`,
    beside those of `info["metrics"]`. They must be numbers or flags."""
    curriculum: str | Mapping[str, Any] | None = None
    """Settings of the games that follow training: a schedule by the name of each, such as
    `{difficulty: {start: 0.1, end: 1.0, frames: 200000}}`, or a function of yours that returns them
    (`module:function`). A game gets them as `reset(seed, options=…)`, a simulator in the reply to
    each `start`. Evaluations have none. None: no curriculum."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_one_kind(
            self,
            "a module of PettingZoo, module:function, file.py:Class or open_spiel:name",
            {"lanes": "num_envs"},
        )
        if self.command is not None:
            command_words(self.command)
        if self.spaces is not None:
            Spaces.parse("spaces", self.spaces)
        check_names("info_metrics", self.info_metrics)
        check_curriculum(self.curriculum)
        if self.curriculum is not None and self.environment.startswith("open_spiel:"):
            raise ConfigError(
                "curriculum: expected none for a game of OpenSpiel, which takes no options when it "
                "begins"
            )
        for wrapper in self.wrappers:
            check_code_name("wrappers", wrapper, "module:function or file.py:function")
        if self.is_simulator:
            object.__setattr__(self, "num_envs", self.lanes)

    @property
    def is_simulator(self) -> bool:
        """Whether simulators of one's own play."""
        return self.external or self.command is not None

    @property
    def num_processes(self) -> int:
        """Processes of a simulator; 0 where the workers step environments themselves."""
        return self.count if self.is_simulator else 0

    @property
    def title(self) -> str:
        """What is played, in words."""
        played = "external simulators" if self.external else short_name(self.environment)
        return title_of(self.command, played)

    def located(self) -> Self:
        """Return it with absolute paths of files, for processes that run in other folders."""
        return replace(
            self,
            environment=located_code(self.environment),
            wrappers=tuple(map(located_code, self.wrappers)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchesSourceConfig(MultiAgentSourceConfig):
    """Matches of two or more sides, of which learners play some and their opponents the others."""

    sides: Mapping[str, str] = field(default_factory=dict)
    """Pattern of the agents' names by side, where several agents play together: `{red: "red_*",
    blue: "blue_*"}`. By default each agent is a side of its own; where sides are not alike, those
    whom one policy of `agents` plays are one."""
    changes_sides: bool = True
    """Whether a learner plays all sides that show and take the same. Where false it plays those
    alone that `agents` names for it, as where sides look alike and have other aims."""
    opponents: OpponentsConfig = field(default_factory=OpponentsConfig)
    """Who plays the sides that no learner plays."""

    def __post_init__(self) -> None:
        MultiAgentSourceConfig.__post_init__(self)
        if len(self.sides) == 1:
            raise ConfigError(
                f"sides: expected 2 or more, got {list(self.sides)}: without `sides` each agent is "
                "a side"
            )
        if not self.changes_sides:
            self.opponents.check_unlike_sides()
