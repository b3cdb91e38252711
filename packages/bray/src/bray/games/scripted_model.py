"""A function that plays, as a model: what it returns becomes outputs that every decoder knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import BrayError, ConfigError, DeadlineError, SpecError
from bray_core.nested import Nested
from bray_core.process.user_modules import find_user_code
from bray_core.protocols import Answer, Weights
from bray_core.spaces import Spaces

Script: TypeAlias = Callable[[Any, np.random.Generator], Any]
"""Function of an observation and a generator → an action."""

_NEVER = -1e9
"""Logit of an action that is not taken."""
_LEAST_LOG_STD = -20.0
"""Logarithm of a deviation that nobody sees."""
_NOT_FOUND = (ImportError, AttributeError, ValueError, OSError, SyntaxError)


class ScriptedModel:
    """A `ModelProtocol` that asks a function for each row.

    The function is called with an observation as the agent sees it, nested arrays with the
    `action_mask` where there is one, and a generator. It returns an action of the agent's space,
    whose choices count from 0 on. The decoders take it as it is, drawn or most likely.

    Args:
        name: Name of the function for messages; `module:function` or `file.py:function` where no
            function is given: then it is imported where it plays.
        spaces: What the agent sees and may do.
        seed: Seed of the generator.
        function: Function that plays; None: the one of that name.
    """

    def __init__(
        self, name: str, spaces: Spaces, *, seed: int = 0, function: Script | None = None
    ) -> None:
        self.name = name
        self._spaces = spaces
        self._seed = seed
        self._given = function
        self._found = function
        self._actions = ActionVector(spaces.action, spaces.origin)
        self._generator = np.random.default_rng(seed)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made of; a function that was named is imported again."""
        return _remade, (self.name, self._spaces, self._seed, self._given)

    @property
    def version(self) -> int:
        """0: a function does not learn."""
        return 0

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer one row, or with `batch` each of several.

        Raises:
            ConfigError: the function cannot be imported.
            BrayError: the function raised; names it.
            SpecError: the function returned no action of the space; names it.
        """
        observation = inputs[0]
        if not batch:
            outputs = self._outputs([self._numbers(observation)])
            return Answer(nested.map(lambda leaf: leaf[0, ...], outputs), 0)
        size = len(next(iter(nested.flatten(observation).values())))
        rows = [nested.map(lambda leaf, at=at: leaf[at, ...], observation) for at in range(size)]
        return Answer(self._outputs([self._numbers(row) for row in rows]), 0)

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """`infer` without the version."""
        return (await self.infer(*inputs, batch=batch)).outputs

    def publish(self, weights: Weights) -> int:
        """Refuse weights.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"publish: expected a model that learns, got the script {self.name}")

    def checkpoint(self) -> Path | None:
        """Return None: there is nothing to write."""
        return None

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Return 0.

        Raises:
            DeadlineError: a version above 0 is waited for, which will never come.
        """
        if version > 0:
            raise DeadlineError(f"version {version}: the script {self.name} stays at 0")
        return 0

    def _numbers(self, observation: Nested) -> npt.NDArray[Any]:
        """Return the drawn numbers of the function's action for one row."""
        if _is_idle(observation):
            return np.zeros(self._actions.spec.shape, self._actions.spec.dtype)
        function = self._function()
        try:
            action = function(nested.map(np.array, observation), self._generator)
        except Exception as error:  # the boundary to code of others
            if _is_blank(observation):
                return np.zeros(self._actions.spec.shape, self._actions.spec.dtype)
            raise BrayError(f"{self.name}: {type(error).__name__}: {error}") from error
        return self._checked(action)

    def _function(self) -> Script:
        if self._found is None:
            self._found = found_script(self.name)
        return self._found

    def _checked(self, action: Any) -> npt.NDArray[Any]:
        sizes, spec = self._actions.sizes, self._actions.spec
        try:
            numbers = np.asarray(self._actions.flatten(_arrays(self._spaces.action, action)))
        except (SpecError, TypeError, ValueError) as error:
            raise SpecError(f"{self.name}: expected {self._wanted}, got {action!r}") from error
        choices, reals = np.split(numbers.reshape(-1).astype(np.float64), [len(sizes)])
        is_choice = (choices >= 0) & (choices < sizes) if numbers.shape == spec.shape else False
        if not np.all(is_choice) or not np.isfinite(reals).all():
            raise SpecError(f"{self.name}: expected {self._wanted}, got {action!r}")
        return numbers

    @property
    def _wanted(self) -> str:
        leaves = [f"{leaf}" for leaf in nested.flatten(self._spaces.action).values()]
        return f"an action ({', '.join(leaves)}; choices from 0 on)"

    def _outputs(self, rows: list[npt.NDArray[Any]]) -> dict[str, Any]:
        numbers = np.stack(rows).reshape(len(rows), -1)
        sizes = self._actions.sizes
        heads = [_one_hot(numbers[:, at], size) for at, size in enumerate(sizes)]
        outputs: dict[str, Any] = {"value": np.zeros(len(rows), np.float32)}
        if heads:
            outputs["logits"] = heads[0] if self._actions.is_one else heads
        if self._actions.num_reals:
            outputs["mean"] = numbers[:, len(sizes) :].astype(np.float32)
            outputs["log_std"] = np.full_like(outputs["mean"], _LEAST_LOG_STD)
        return outputs


def found_script(name: str) -> Script:
    """Import a function, `module:function` or `file.py:function`.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        found: Script = find_user_code(name)
    except _NOT_FOUND as error:
        raise ConfigError(
            f"{name}: expected module:function or file.py:function of a player: {error}"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"{name}: expected a function of an observation and a generator, got "
            f"{type(found).__name__}"
        )
    return found


def _remade(name: str, spaces: Spaces, seed: int, function: Script | None) -> ScriptedModel:
    return ScriptedModel(name, spaces, seed=seed, function=function)


def _arrays(space: Nested, action: Any) -> Nested:
    """Return an action as arrays; lists of numbers are arrays, too.

    Raises:
        TypeError: it is nested otherwise than the space, or a choice is no whole number.
        ValueError: it has more or fewer parts than the space.
    """
    if isinstance(space, dict):
        if not isinstance(action, dict) or set(action) != set(space):
            raise TypeError(f"expected {list(space)}")
        return {name: _arrays(child, action[name]) for name, child in space.items()}
    if isinstance(space, list | tuple):
        return tuple(_arrays(child, part) for child, part in zip(space, action, strict=True))
    array = np.asarray(action)
    is_choice = space.kind in ("category", "binary")
    if array.dtype.kind not in ("iub" if is_choice else "iubf"):
        raise TypeError(f"expected numbers, got {array.dtype}")
    return array


def _is_idle(observation: Nested) -> bool:
    """Return whether a row is of nobody: agents that do not act now have rows of zeros."""
    mask = observation.get("action_mask") if isinstance(observation, dict) else None
    return mask is not None and not np.any(mask)


def _is_blank(observation: Nested) -> bool:
    return not any(np.any(leaf) for leaf in nested.flatten(observation).values())


def _one_hot(choices: npt.NDArray[Any], size: int) -> npt.NDArray[np.float32]:
    logits = np.full((len(choices), size), _NEVER, np.float32)
    logits[np.arange(len(choices)), choices.astype(np.int64)] = 0.0
    return logits
