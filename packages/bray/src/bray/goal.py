"""When a run has succeeded, when it gives up, and how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

from bray_core.errors import ConfigError
from bray_core.files.json_file import finite
from bray_core.files.saved_file import write_atomic
from bray_core.settings.ranges import PositiveFloat, PositiveInt, Range, check_fields
from bray_core.trials.trial import RESULT

_LEAST_RETURNS = 20
"""Episodes before their mean return says anything."""
_LEAST_SHARE = 0.1
"""Frames between two evaluations for which the training returns call, as a share of those before:
a short run is evaluated soon."""
_MOST_SHARE = 1 / 50
"""The same as a share of the budget, which is enough in a long run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """When training has succeeded, and when it gives up."""

    episode_return: float | None = None
    """Mean return that an evaluation must reach. None: the `reward_threshold` that the environment
    is registered with; where it has none, the run ends when its budget is used up."""
    evaluation_episodes: PositiveInt = 100
    """Episodes of an evaluation, played with the policy's most likely actions (Atari: drawn)."""
    evaluate_over_the_wire: bool = False
    """Whether environments of Gymnasium's own, too, are evaluated by a gamecore process over the
    wire, as production would see the policy. The returns are the same, and take several times as
    long where environment and network are quick. Other environments always are."""
    evaluate_at: float | None = None
    """Mean training return (last `evaluate_window` episodes) from which evaluations start. After
    one that falls short the next comes when there are a tenth more frames, or a fiftieth of the
    budget if that is less. None: the goal's."""
    evaluate_window: Annotated[int, Range(minimum=20, maximum=100)] = 100
    """Newest training episodes whose mean return is compared with `evaluate_at`. With few of them
    the first evaluation comes soon after the policy has become good, but a lucky streak may bring
    some that fall short; with many it waits until the poor episodes of before are forgotten. An
    evaluation alone decides, whatever called for it. 20 to 100."""
    max_frames: PositiveInt | None = None
    """Environment steps after which training gives up, those of earlier launches of the trial
    included. None: the algorithm's own budget."""
    max_hours: PositiveFloat | None = None
    """Hours of one launch after which training gives up. None: as long as it takes."""
    agent: str | None = None
    """Agent whose returns, or games, the goal is about; needed where several learn."""
    win_rate: Annotated[float, Range(above=0, maximum=1)] | None = None
    """Share of an evaluation's games that the agent must win, a draw counted as half, in place of a
    return. Near 1 needs many episodes: of 100 games, 95 won may well be chance at a rate of 0.9."""
    against: str | None = None
    """Who plays the other side of these games: the name of an agent, `random`, `search` (in bray's
    own board games), a frozen version such as `v12`, `module:function` of a script, or the folder
    of an export or a trial. None: the newest opponents."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("episode_return", "evaluate_at"):
            value = getattr(self, name)
            if value is not None and math.isnan(value):
                raise ConfigError(f"{name}: expected a number, got nan")
        if self.win_rate is not None and self.episode_return is not None:
            raise ConfigError(
                f"win_rate: expected either episode_return or win_rate, got "
                f"episode_return={self.episode_return:g} and win_rate={self.win_rate:g}: "
                "remove one"
            )
        if self.against is not None and self.win_rate is None:
            raise ConfigError(
                f"against: expected with win_rate alone, got {self.against!r} without: a return "
                "is won against nobody"
            )

    def completed(self, *, reward_threshold: float | None, max_frames: int) -> Goal:
        """Return the goal with all that was left open: no run sees None but for `episode_return`.

        Args:
            reward_threshold: return that the environment is registered with, if there is one.
            max_frames: budget of the algorithm, in environment steps.
        """
        is_open = self.episode_return is None and self.win_rate is None
        wanted = reward_threshold if is_open else self.episode_return
        return replace(
            self,
            episode_return=wanted,
            evaluate_at=wanted if self.evaluate_at is None else self.evaluate_at,
            max_frames=self.max_frames or max_frames,
        )

    @property
    def budget(self) -> int:
        """Environment steps after which training gives up.

        Raises:
            ConfigError: nobody said.
        """
        if self.max_frames is None:
            raise ConfigError("max_frames: expected a number of environment steps, got None")
        return self.max_frames

    @property
    def wanted(self) -> float | None:
        """Mean return, or share of games won, that an evaluation must reach, if there is one."""
        return self.episode_return if self.win_rate is None else self.win_rate

    @property
    def measure(self) -> str:
        """What an evaluation's mean is, in words."""
        return "mean return" if self.win_rate is None else "share of games won"

    def is_reached(self, mean_return: float) -> bool:
        """Return whether an evaluation is good enough; any is where there is nothing to reach.

        Args:
            mean_return: mean return of the evaluation, or the share of games won for a `win_rate`.
        """
        return self.wanted is None or mean_return >= self.wanted

    def is_promising(self, mean_return: float) -> bool:
        """Return whether a training return is good enough to evaluate; none is without a goal."""
        wanted = self.episode_return if self.evaluate_at is None else self.evaluate_at
        return wanted is not None and mean_return >= wanted

    def calls_for_evaluation(
        self, returns: Iterable[float], frames: int, evaluated_at: int
    ) -> bool:
        """Return whether what was played in training calls for an evaluation.

        Args:
            returns: returns of the newest training episodes, oldest first.
            frames: environment steps so far.
            evaluated_at: environment steps at the last evaluation; 0: there was none.
        """
        newest = list(returns)[-self.evaluate_window :]
        least = min(_LEAST_SHARE * evaluated_at, _MOST_SHARE * self.budget)
        return (
            self.episode_return is not None
            and frames - evaluated_at >= least
            and len(newest) >= _LEAST_RETURNS
            and self.is_promising(sum(newest) / len(newest))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    reached: bool
    """Whether the last evaluation reached the goal; without a return to reach: whether the budget
    was used up as planned."""
    evaluation_return: float
    """Mean return of the last evaluation."""
    frames: int
    """Environment steps of the trial, earlier launches included."""
    seconds: float
    """Seconds that this launch trained for."""
    version: int
    """Version of the policy that was evaluated."""
    episode_returns: list[float] = field(default_factory=list)
    """Returns of the last evaluation's episodes."""
    frames_per_s: float = 0.0
    """Environment steps a second of this launch, evaluations included."""
    stopped: str = ""
    """Why a callback of yours ended the run; empty where none did."""

    def figures(self) -> dict[str, float]:
        """Return what `Run.report` tells of it."""
        return {
            "frames": self.frames,
            "elapsed_s": self.seconds,
            "evaluation_return": self.evaluation_return,
        }


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def conclude(trial: Path, outcome: AnyOutcome) -> AnyOutcome:
    """Write an outcome to a trial's `result.json`, where `bray view` finds it; return it."""
    # JSON has no −∞, which the mean is where no episode has ended.
    known = {**asdict(outcome), "evaluation_return": finite(outcome.evaluation_return)}
    text = json.dumps(known, indent=1)
    write_atomic(trial / RESULT, text.encode())
    return outcome
