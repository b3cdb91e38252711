"""The settings of a search that vary: `1e-4..1e-2:log`, `32..512:int`, `relu|tanh`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import yaml

from bray_core.errors import ConfigError, Problem, SettingsError
from bray_core.settings.settings_load import COMMAND_LINE

_BETWEEN = re.compile(r"(?P<low>[^|'\"\[{:]+?)\.\.(?P<high>[^|'\":]*)(?P<kinds>(?::[^|:]*)*)")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_KINDS = ("log", "int")
_MOST_CHOICES = 1000
_MEASURES = ("goal", "seed")
"""What tells how good a trial was, not what makes it good."""
_MOST_STEP = 64
"""Largest step between whole numbers that is looked for."""
FORMS = "a..b, a..b:log, a..b:int or a|b|c"
"""How ranges are written, for messages."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers from `low` to `high`, both included."""

    key: str
    """Name of the setting, dotted or alone."""
    low: float
    high: float
    is_log: bool = False
    """Whether the logarithm is drawn evenly, not the number."""
    is_whole: bool = False
    """Whether numbers are whole."""
    step: int = 1
    """Distance of each whole number from the next, counted from `low`."""

    def ends(self) -> list[str]:
        """Return both ends as they are written in a template."""
        return [written(self.cast(self.low)), written(self.cast(self.high))]

    def cast(self, value: float) -> float | int:
        """Return a value of the range as what the setting takes."""
        return int(value) if self.is_whole else float(value)


@dataclass(frozen=True, slots=True)
class Choices:
    """One of several values, each as it is written in a template."""

    key: str
    """Name of the setting, dotted or alone."""
    values: tuple[str, ...]

    def ends(self) -> list[str]:
        """Return all values."""
        return list(self.values)


Range: TypeAlias = NumberRange | Choices
Load: TypeAlias = Callable[[Sequence[str]], Any]
"""Reads the template with overrides; raises ConfigError."""


def split_settings(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that stay as they are, and those that are ranges, as they are written.

    A value with `|`, or with `..` after something, is a range; one in quotes never is.
    """
    fixed: list[str] = []
    ranges: list[str] = []
    for override in overrides:
        (ranges if _is_range(override.partition("=")[2]) else fixed).append(override)
    return fixed, ranges


def read_ranges(overrides: Sequence[str], fixed: Sequence[str], load: Load) -> list[Range]:
    """Return the ranges that are written, checked against the settings of the template.

    Both ends of a range, and all values of a choice, are tried in the template. One that is
    refused beside the template's own settings may still suit an end of another range.

    Args:
        overrides: ranges as they are written, `key=1..2`.
        fixed: other overrides.
        load: reads the template.

    Raises:
        SettingsError: naming all that is wrong with the template, its settings and the ranges.
    """
    problems = _Problems()
    parsed: list[Range] = []
    keys: set[str] = set()
    for override in overrides:
        key, _, text = override.partition("=")
        if key in keys:
            problems.add(key, f"{key}: is given twice: remove one")
            continue
        keys.add(key)
        if key.partition(".")[0] in _MEASURES:
            problems.add(
                key,
                f"{key}: expected one value, by which all trials are compared, got a range: {text}",
            )
            continue
        try:
            parsed.append(_parse(key, text))
        except ConfigError as error:
            problems.add(key, str(error))
    problems.of(partial(_beside_ends, load, parsed, fixed))
    found: list[Range] = []
    for one in parsed:
        beside = partial(_beside_ends, load, [other for other in parsed if other is not one])
        if isinstance(one, NumberRange) and not one.is_whole:
            one = _of_its_kind(one, fixed, beside)
        if isinstance(one, NumberRange) and one.is_whole and not one.is_log:
            one = _stepped(one, fixed, beside)
        for value in one.ends():
            problems.of(partial(beside, [*fixed, f"{one.key}={value}"]))
        found.append(one)
    problems.raise_all()
    _check_apart(found, fixed, load)
    if not found:
        raise ConfigError(
            f"ranges: expected one setting or more with a range ({FORMS}), such as "
            "trainer.learning_rate=1e-4..1e-2:log, got none"
        )
    return found


def _beside_ends(load: Load, others: Sequence[Range], overrides: Sequence[str]) -> None:
    """Read the template with overrides, alone or beside an end of another range.

    Raises:
        ConfigError: all of that is refused; says why, of the overrides alone.
    """
    try:
        load(overrides)
    except ConfigError:
        ends = (f"{one.key}={end}" for one in others for end in _tried_ends(one))
        if not any(_takes(load, [*overrides, end]) for end in ends):
            raise


def _tried_ends(one: Range) -> list[str]:
    """Return the ends of a range; whole numbers as such, which all kinds of numbers take."""
    if isinstance(one, NumberRange) and one.low.is_integer() and one.high.is_integer():
        return replace(one, is_whole=True).ends()
    return one.ends()


def _check_apart(ranges: Sequence[Range], fixed: Sequence[str], load: Load) -> None:
    """Refuse two ranges of one setting by different names: only the later would count.

    Raises:
        ConfigError: naming both.
    """
    for one, other in itertools.combinations(ranges, 2):
        if one.key.rpartition(".")[2] != other.key.rpartition(".")[2]:
            continue
        last = f"{other.key}={other.ends()[0]}"
        try:
            alone = load([*fixed, last])
            is_same = all(load([*fixed, f"{one.key}={end}", last]) == alone for end in one.ends())
        except ConfigError:  # refused together, so two settings
            continue
        if is_same:
            raise ConfigError(f"{one.key}: is the same setting as {other.key}: remove one")


def num_values(one: Range) -> int:
    """Return how many values a range has.

    Raises:
        ConfigError: it has infinitely many.
    """
    if isinstance(one, Choices):
        return len(one.values)
    if not one.is_whole:
        raise ConfigError(
            f"sampler: grid tries all values, and {one.key} has infinitely many: write some, such "
            "as 1e-4|1e-3, or choose another sampler"
        )
    return (int(one.high) - int(one.low)) // one.step + 1


def of_mapping(ranges: Mapping[str, object]) -> list[str]:
    """Return ranges of a program as the command line writes them: texts, or lists of choices.

    Raises:
        ConfigError: a range is neither.
    """
    made = []
    for key, value in ranges.items():
        if isinstance(value, str):
            if not _is_range(value):
                raise ConfigError(f"{key}: expected {FORMS}, or a list of values, got {value!r}")
            made.append(f"{key}={value}")
        elif isinstance(value, list | tuple) and value:
            made.append(f"{key}=" + "|".join(written(one) for one in value))
            if len(value) == 1:
                raise ConfigError(f"{key}: expected two values or more to choose from, got one")
        else:
            raise ConfigError(f"{key}: expected {FORMS}, or a list of values, got {value!r:.100}")
    return made


def written(value: object) -> str:
    """Return a value as an override holds it.

    Raises:
        ConfigError: it cannot be written, or has the sign that divides choices.
    """
    try:
        text = yaml.safe_dump(value, default_flow_style=True, width=math.inf).strip()
    except yaml.YAMLError as error:
        raise ConfigError(f"expected a number, a word or a list, got {value!r:.100}") from error
    text = text.removesuffix("...").strip()
    if "|" in text:
        raise ConfigError(f"expected a value without '|', got {value!r:.100}")
    return text


def _is_range(text: str) -> bool:
    text = text.strip()
    if text[:1] in ("'", '"'):
        return False
    return "|" in text or _BETWEEN.fullmatch(text) is not None


def _parse(key: str, text: str) -> Range:
    text = text.strip()
    if "|" in text:
        values = [one.strip() for one in text.split("|")]
        if "" in values:
            raise ConfigError(f"{key}: expected values between the '|', got {text!r}")
        if len(set(values)) < len(values):
            raise ConfigError(f"{key}: expected different values, got {text!r}")
        if len(values) > _MOST_CHOICES:
            raise ConfigError(f"{key}: expected {_MOST_CHOICES} values at most, got {len(values)}")
        return Choices(key, tuple(values))
    found = _BETWEEN.fullmatch(text)
    assert found is not None, "it was taken for a range"
    kinds = found["kinds"].split(":")[1:]
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise ConfigError(
            f"{key}: expected a..b with :log or :int, got :{unknown[0]} in {text!r:.100}"
        )
    low, high = (_number(key, found[name].strip(), text) for name in ("low", "high"))
    if not low < high:
        raise ConfigError(f"{key}: expected a..b where a is less than b, got {text!r:.100}")
    if "log" in kinds and low <= 0:
        raise ConfigError(f"{key}: expected a..b:log with a above 0, got {text!r:.100}")
    is_whole = "int" in kinds
    if is_whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{key}: expected whole numbers before :int, got {text!r:.100}")
    return NumberRange(key, low, high, is_log="log" in kinds, is_whole=is_whole)


def _number(key: str, text: str, whole: str) -> float:
    if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
        raise ConfigError(f"{key}: expected numbers in a..b, got {text!r:.100} in {whole!r:.100}")
    return float(text)


def _of_its_kind(one: NumberRange, fixed: Sequence[str], load: Load) -> NumberRange:
    """Return a range of whole numbers where both ends are, and the setting takes no others."""
    if not (one.low.is_integer() and one.high.is_integer()):
        return one
    whole = NumberRange(one.key, one.low, one.high, is_log=one.is_log, is_whole=True)
    between = (one.low + one.high) / 2
    between = between + 0.5 if between.is_integer() else between
    if _takes(load, [*fixed, f"{one.key}={between}"]):
        return one
    is_taken = any(_takes(load, [*fixed, f"{one.key}={end}"]) for end in whole.ends())
    return whole if is_taken else one


def _stepped(one: NumberRange, fixed: Sequence[str], load: Load) -> NumberRange:
    """Return a range of whole numbers with the step of those that the setting takes."""
    low, room = int(one.low), int(one.high - one.low)
    if not _takes(load, [*fixed, f"{one.key}={low}"]):
        return one  # that is told
    steps = range(1, min(room, _MOST_STEP) + 1)
    found = (n for n in steps if _takes(load, [*fixed, f"{one.key}={low + n}"]))
    return replace(one, step=next(found, 1))


def _takes(load: Load, overrides: Sequence[str]) -> bool:
    try:
        load(overrides)
    except ConfigError:
        return False
    return True


class _Problems:
    """Gathers what is wrong, each thing once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}

    def of(self, attempt: Callable[[], object]) -> None:
        """Try something, and keep what it says is wrong."""
        try:
            attempt()
        except SettingsError as error:
            for problem in error.problems:
                self._found.setdefault((problem.place, problem.text), problem)
        except ConfigError as error:
            self.add("", str(error))

    def add(self, key: str, text: str) -> None:
        """Keep what is wrong with a setting of the command line."""
        self._found.setdefault((COMMAND_LINE, text), Problem(COMMAND_LINE, key, text))

    def raise_all(self) -> None:
        """Raise all that was found."""
        if self._found:
            raise SettingsError(list(self._found.values()))
