"""Opponents to draw from: by weights that the user sets, or by how games against them ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np

from bray_core.errors import AlreadyExistsError, ConfigError, NotFoundError
from bray_core.settings.choice import check_choice

PoolRule: TypeAlias = Literal["weights", "hard", "even"]


class NamedMember(Protocol):
    """Anything with a name, such as a `Model` or a `RemoteModel`."""

    name: str


PoolMember = TypeVar("PoolMember", bound=str | NamedMember)


@dataclass(slots=True)
class _Results:
    """Results of the games against one member."""

    weight: float
    games: float = 0.0
    won: float = 0.0

    @property
    def win_rate(self) -> float:
        return self.won / self.games if self.games else 0.5


class ModelPool(Generic[PoolMember]):
    """Draws members, such as the clones of a model that it plays against. Not thread-safe.

    The probability of a member is in proportion to its weight times a factor of x, the share of
    games that were won against it (0.5 before the first):

    - `weights`: 1, whatever the results;
    - `hard`: (1 - x)^power, the ones that are hard to beat;
    - `even`: x (1 - x), the ones of about the same strength.

    The last two are prioritised fictitious self-play: f_hard and f_var of Vinyals et al. 2019,
    "Grandmaster level in StarCraft II using multi-agent reinforcement learning", supplement. Where
    all factors are zero, as when every game was won, the weights alone count.

    Args:
        rule: How results count: see above.
        power: Exponent of the rule `hard`, 0 or more. 0 ignores the results, large values draw
            almost only the hardest member, which then is overfitted to. Typical: 1 to 4.
        decay: Factor on earlier games against a member after each further one: results then follow
            a policy that learns. 1 forgets nothing, small values follow chance. Typical: 0.95 to
            1.
        seed: Seed of the draws; None: another one every time.

    Raises:
        ConfigError: a value is out of range.

    Examples:
        >>> pool = ModelPool(rule="hard", seed=0)
        >>> for name in ("rookie", "champion"):
        ...     pool.add(name)
        >>> pool.record("rookie", 1.0)
        >>> pool.probabilities()
        {'rookie': 0.0, 'champion': 1.0}
    """

    def __init__(
        self,
        *,
        rule: PoolRule = "weights",
        power: float = 2.0,
        decay: float = 0.99,
        seed: int | None = None,
    ) -> None:
        check_choice("rule", rule, get_args(PoolRule))
        self._rule = rule
        self._power = _number("power", power, 0, math.inf)
        self._decay = _number("decay", decay, 0, 1)
        self._members: dict[str, PoolMember] = {}
        self._results: dict[str, _Results] = {}
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def add(self, member: PoolMember, *, weight: float = 1.0) -> None:
        """Add a model, or only a name.

        Raises:
            AlreadyExistsError: the pool has one of that name.
            ConfigError: the weight is not more than 0, or the member has no name.
        """
        name = member if isinstance(member, str) else getattr(member, "name", None)
        if not isinstance(name, str):
            raise ConfigError(f"member: expected a name or a model, got {member!r}")
        if name in self._members:
            raise AlreadyExistsError(f"member: the pool has {name!r} already")
        self._results[name] = _Results(_weight(weight))
        self._members[name] = member

    def set_weight(self, name: str, weight: float) -> None:
        """Give a member another weight."""
        self._of(name).weight = _weight(weight)

    def remove(self, name: str) -> PoolMember:
        """Take a member out, its results as well, and return it; it is not closed."""
        self._of(name)
        del self._results[name]
        return self._members.pop(name)

    def sample(self) -> PoolMember:
        """Draw a member, as it was added.

        Raises:
            NotFoundError: the pool is empty.
        """
        probabilities = self.probabilities()
        if not probabilities:
            raise NotFoundError("the pool is empty: add a member first")
        index = self._rng.choice(len(probabilities), p=list(probabilities.values()))
        return self._members[list(probabilities)[index]]

    def record(self, name: str, won: float) -> None:
        """Count one game against a member: 1 is a win over it, 0 a loss, 0.5 a draw."""
        results = self._of(name)
        _number("won", won, 0, 1)
        results.games = results.games * self._decay + 1.0
        results.won = results.won * self._decay + won

    def win_rate(self, name: str) -> float:
        """Return the share of games won against a member, recent ones counting more."""
        return self._of(name).win_rate

    def probabilities(self) -> dict[str, float]:
        """Return name → probability of being drawn next."""
        scores = {name: r.weight * self._factor(r) for name, r in self._results.items()}
        if not any(scores.values()):
            scores = {name: r.weight for name, r in self._results.items()}
        total = sum(scores.values())
        return {name: score / total for name, score in scores.items()}

    def state(self) -> dict[str, Any]:
        """Return weights, results and the state of the draws, as JSON takes them."""
        results = {name: asdict(results) for name, results in self._results.items()}
        return {"members": results, "rng": self._rng.bit_generator.state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned; its members have been added, others may have been too.

        Raises:
            NotFoundError: A member of the state is not in the pool.
            ConfigError: `state` is not a pool's state; the pool stays as it is.
        """
        try:
            members = {name: _Results(**results) for name, results in state["members"].items()}
            for results in members.values():
                _weight(results.weight)
                _number("won", results.won, 0, _number("games", results.games, 0, math.inf))
            rng = np.random.default_rng()
            rng.bit_generator.state = state["rng"]
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ConfigError(f"state: expected what state() returned, got {error!r}") from error
        for name in members:
            self._of(name)
        self._results.update(members)
        self._rng = rng

    def _factor(self, results: _Results) -> float:
        x = results.win_rate
        if self._rule == "hard":
            return float((1.0 - x) ** self._power)
        return x * (1.0 - x) if self._rule == "even" else 1.0

    def _of(self, name: str) -> _Results:
        if name not in self._results:
            known = sorted(self._results)
            raise NotFoundError(f"member {name!r}: not in the pool; it has {known or 'none'}")
        return self._results[name]


def _weight(weight: float) -> float:
    if not _number("weight", weight, 0, math.inf):
        raise ConfigError("weight: expected more than 0, got 0: remove the member instead")
    return weight


def _number(name: str, value: float, least: float, most: float) -> float:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or math.isinf(value):
        bound = "a finite number of {:g} or more" if math.isinf(most) else "{:g} to {:g}"
        raise ConfigError(f"{name}: expected {bound.format(least, most)}, got {value!r}")
    return float(value)
