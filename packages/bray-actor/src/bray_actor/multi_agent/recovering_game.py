"""A game of several agents that is made anew where it raises, or tells what nobody can learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bray_actor.environments.error_limit import ERROR, Renewal
from bray_actor.environments.error_words import RAISED, error_words
from bray_actor.environments.finite import check_finite, check_reward
from bray_actor.multi_agent.environment import (
    AgentTick,
    MultiAgentEnvironment,
    takes_options,
)
from bray_core import nested
from bray_core.errors import BrayError, SpecError
from bray_core.nested import Nested
from bray_core.process.signal_errors import raise_if_of_signal
from bray_core.spaces import LeafSpace, Spaces


class RecoveringGame:
    """A `MultiAgentEnvironment` that is made anew where it raises; its game is void.

    A reward or an observation that holds no finite numbers, an observation that changes its form
    within a game, or a number that a category does not have, counts as raised. The ticks of the
    step that failed truncate all who acted, and their info says what was raised, as
    `environment_error`. Errors that bray raises, such as an action outside its space, are no fault
    of the environment and pass.

    Args:
        make: Function that makes the environment.
        name: What is played, for messages.

    Raises:
        BrayError: the environment raises as it is made or first reset.
    """

    def __init__(self, make: Callable[[], MultiAgentEnvironment], name: str) -> None:
        self.name = name
        """What is played, for messages."""
        try:
            self._game = make()
        except BrayError:
            raise
        except RAISED as error:  # the boundary to code of others
            raise_if_of_signal(error)
            words = error_words(error)
            raise BrayError(
                f"environment: {name} raised before its first game, mend it: {words}"
            ) from error
        self._renewal = Renewal(make, name)
        self._shapes: dict[str, list[tuple[str, Any]]] = {}
        """Shapes of what each agent observes, by path."""
        self._categories: dict[str, dict[str, LeafSpace]] = {}

    @property
    def agents(self) -> Sequence[str]:
        """Names of all agents that may ever take part."""
        return self._game.agents

    def spaces(self, agent: str) -> Spaces:
        """Return what an agent sees and may do."""
        return self._game.spaces(agent)

    @property
    def takes_options(self) -> bool:
        """Whether the environment's `reset` takes options."""
        return takes_options(self._game)

    @property
    def acts_at_once(self) -> bool:
        """Whether all who are there act in each step, as far as the environment says it."""
        return bool(getattr(self._game, "acts_at_once", False))

    @property
    def state_size(self) -> int | None:
        """Numbers of the state that the environment tells of the whole game; None: it has none."""
        size: int | None = getattr(self._game, "state_size", None)
        return size

    def state(self) -> Any:
        """Return the state of the whole game, an array."""
        game: Any = self._game
        return game.state()

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> dict[str, AgentTick]:
        """Begin a game, with another environment where that fails."""
        if seed is not None:
            self._renewal.seed = seed
        while True:
            try:
                ticks = self._reset(seed, options)
                self._check_categories(ticks)
                return ticks
            except BrayError:
                raise
            except RAISED as error:  # the boundary to code of others
                self._renewal.renew(self._game, self._begin, error)
                seed = self._renewal.next_seed()

    def _reset(self, seed: int | None, options: Mapping[str, Any] | None) -> dict[str, AgentTick]:
        if options is None:
            return _checked(self._game.reset(seed))
        reset: Any = self._game.reset
        return _checked(reset(seed, options=options))

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the actions; where that fails all who acted are truncated.

        Raises:
            BrayError: the environment keeps failing.
        """
        self._renewal.count_step()
        try:
            ticks = _checked(self._game.step(actions))
            self._check_form(ticks)
            self._check_categories(ticks)
            return ticks
        except BrayError:
            raise
        except RAISED as error:  # the boundary to code of others
            info = {ERROR: self._renewal.renew(self._game, self._begin, error)}
            return {agent: AgentTick(None, truncated=True, info=info) for agent in actions}

    def _check_form(self, ticks: Mapping[str, AgentTick]) -> None:
        """Refuse observations that changed their form within a game.

        The first ones of a game are looked at by who plays: an environment whose spaces say
        something else from the beginning is a mistake, and no accident.
        """
        with _environments_fault():
            for agent, tick in ticks.items():
                if tick.observation is None:
                    continue
                shapes = self._shapes.get(agent)
                if shapes is None:
                    shapes = self._shapes[agent] = _shapes(self._spec(agent))
                if _shapes(tick.observation) != shapes:
                    nested.check(
                        tick.observation, self._spec(agent), name=f"observation of {agent}"
                    )

    def _check_categories(self, ticks: Mapping[str, AgentTick]) -> None:
        """Refuse numbers that a category does not have: a network would take them for others."""
        for agent, tick in ticks.items():
            categories = self._categories_of(agent)
            if not categories or tick.observation is None or tick.terminated:
                continue
            for path, value in nested.items(tick.observation, agent):
                leaf = categories.get(path)
                if leaf is None or np.shape(value) != leaf.shape:
                    continue
                wrong = (value < 0) | (value >= np.reshape(leaf.sizes, leaf.shape))
                if np.any(wrong):
                    one = int(np.argmax(wrong))
                    first = int(np.broadcast_to(leaf.start, np.size(value))[one])
                    raise ValueError(
                        f"observation of {path}: expected whole numbers from {first} to "
                        f"{first + leaf.sizes[one] - 1}, got {first + np.reshape(value, -1)[one]}"
                    )

    def _categories_of(self, agent: str) -> dict[str, LeafSpace]:
        """Return the categories that an agent observes, by path."""
        if agent not in self._categories:
            leaves = nested.items(self._game.spaces(agent).observation, agent)
            self._categories[agent] = {path: one for path, one in leaves if one.kind == "category"}
        return self._categories[agent]

    def _spec(self, agent: str) -> Nested:
        return self._game.spaces(agent).observation_spec

    def _begin(self, game: MultiAgentEnvironment) -> None:
        self._game = game
        if self._renewal.seed is not None:  # its next reset may bring none
            game.reset(self._renewal.next_seed())

    def render(self) -> Any:
        """Return the game as it stands, as its environment draws it; None: it draws nothing."""
        render = getattr(self._game, "render", None)
        return None if render is None else render()

    def close(self) -> None:
        """Close the environment; where that raises the log says it."""
        self._renewal.close(self._game)


def _shapes(tree: Nested) -> list[tuple[str, Any]]:
    return [(path, getattr(leaf, "shape", ())) for path, leaf in nested.items(tree)]


def _checked(ticks: dict[str, AgentTick]) -> dict[str, AgentTick]:
    """Return the ticks if all their numbers are finite, in float32 too.

    Raises:
        ValueError: a reward or an observation has others; names the agent.
    """
    with _environments_fault():
        for agent, tick in ticks.items():
            check_reward(tick.reward, f"reward of {agent}")
            for path, leaf in nested.items(tick.observation, agent):
                if getattr(leaf, "dtype", None) is not None and leaf.dtype.kind == "f":
                    check_finite(leaf, f"observation of {path}")
    return ticks


@contextmanager
def _environments_fault() -> Iterator[None]:
    """Raise as a ValueError what is wrong with an environment, and not with how bray is used."""
    try:
        yield
    except SpecError as error:
        raise ValueError(str(error)) from error
