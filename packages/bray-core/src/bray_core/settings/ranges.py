"""Ranges of a config's fields, declared with their types: `learning_rate: PositiveFloat = 1e-3`.

A config checks them all with one line in its `__post_init__`, and the JSON Schema of templates
reads them from the same place:

    @dataclass(frozen=True, kw_only=True, slots=True)
    class ExampleConfig:
        learning_rate: PositiveFloat = 1e-3
        epochs: Annotated[int, Range(minimum=1, maximum=100)] = 10

        def __post_init__(self) -> None:
            check_fields(self)
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeAlias, Union

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The numbers that a field takes. NaN is in no range, infinity only where it is said.

    For a tuple of numbers the range is that of each, and an empty tuple is refused.
    """

    minimum: float | None = None
    """The least number."""
    above: float | None = None
    """Every number is greater than this."""
    maximum: float | None = None
    """The greatest number."""
    below: float | None = None
    """Every number is less than this."""
    multiple_of: int | None = None
    """Every number is a multiple of this."""
    allow_infinity: bool = False
    """Whether infinity is taken, where the bounds leave room for it."""

    def __contains__(self, value: float) -> bool:
        """Return whether a number is in the range."""
        return (
            not math.isnan(value)
            and (self.allow_infinity or not math.isinf(value))
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
            and (self.multiple_of is None or value % self.multiple_of == 0)
        )

    def words(self) -> str:
        """Return the range in words: `1 or more`, `more than 0`, `0 to 1`."""
        least, most = self.minimum, self.maximum
        if least is not None and most is not None:
            text = f"{least:g} to {most:g}"
        else:
            parts = [
                f"{least:g} or more" if least is not None else "",
                f"more than {self.above:g}" if self.above is not None else "",
                f"at most {most:g}" if most is not None else "",
                f"less than {self.below:g}" if self.below is not None else "",
            ]
            text = " and ".join(part for part in parts if part) or "a finite number"
        if self.multiple_of is not None:
            text += f", a multiple of {self.multiple_of}"
        return text

    def json_schema(self) -> dict[str, float]:
        """Return the range with the names that JSON Schema has for it."""
        named = {
            "minimum": self.minimum,
            "exclusiveMinimum": self.above,
            "maximum": self.maximum,
            "exclusiveMaximum": self.below,
            "multipleOf": self.multiple_of,
        }
        return {name: bound for name, bound in named.items() if bound is not None}


FiniteFloat: TypeAlias = Annotated[float, Range()]
PositiveInt: TypeAlias = Annotated[int, Range(minimum=1)]
PositiveFloat: TypeAlias = Annotated[float, Range(above=0)]
NonNegativeInt: TypeAlias = Annotated[int, Range(minimum=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Range(minimum=0)]
Fraction: TypeAlias = Annotated[float, Range(minimum=0, maximum=1)]
Port: TypeAlias = Annotated[int, Range(minimum=0, maximum=65535)]
Seed: TypeAlias = Annotated[int, Range(minimum=0, maximum=2**53)]
"""What begins draws: a number that JSON holds and all generators take, with room for its sums."""
LayerSizes: TypeAlias = Annotated[tuple[int, ...], Range(minimum=1)]
"""Units of a network's layers, one or more of them."""


def check_fields(config: Any) -> None:
    """Refuse values outside their field's range, and words that are none of its `Literal`.

    A field of None is left alone where its type allows None; so are types of other kinds.

    Args:
        config: A dataclass.

    Raises:
        ConfigError: Begins with the field's name, and says what was expected and what came.
    """
    for name, rule in _rules(typing.cast(Hashable, type(config))):
        _check(name, getattr(config, name), rule)


def check_value(name: str, value: Any, kind: Any) -> None:
    """Refuse an argument as `check_fields` refuses a field.

    Args:
        name: Name of the argument, for the message.
        value: What was given.
        kind: Type that is declared as those of this module, such as `PositiveInt | None`.

    Raises:
        ConfigError: Begins with the name, and says what was expected and what came.
    """
    rule = _rule(kind)
    assert rule is not None, f"{kind} declares no range"
    _check(name, value, rule)


def declared_bounds(schema: type[Any]) -> dict[str, dict[str, float]]:
    """Return the bounds of a dataclass's fields, as JSON Schema names them.

    Args:
        schema: Dataclass whose fields are declared with the types of this module.
    """
    return {
        name: rule.range.json_schema()
        for name, rule in _rules(typing.cast(Hashable, schema))
        if rule.range
    }


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: type[Any]
    range: Range | None
    choices: tuple[Any, ...]
    is_tuple: bool
    is_optional: bool
    takes_schedule: bool = False


@functools.cache
def _rules(schema: Hashable) -> tuple[tuple[str, _Rule], ...]:
    hints = typing.get_type_hints(typing.cast(type[Any], schema), include_extras=True)
    found = (
        (field.name, _rule(hints[field.name])) for field in fields(typing.cast(type[Any], schema))
    )
    return tuple((name, rule) for name, rule in found if rule is not None)


def _rule(hint: Any) -> _Rule | None:
    options = list(_options(hint))
    hints = [one for one in options if one is not type(None) and not _is_schedule(one)]
    takes_schedule = any(_is_schedule(one) for one in options)
    if len(hints) != 1:
        return None
    (inner,), is_optional = hints, type(None) in options
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    if origin is Literal:
        return _Rule(str, None, arguments, False, is_optional)
    if origin is not Annotated:
        return None
    base, *notes = arguments
    ranges = [note for note in notes if isinstance(note, Range)]
    if not ranges:
        return None
    is_tuple = typing.get_origin(base) is tuple
    kind = typing.get_args(base)[0] if is_tuple else base
    return _Rule(kind, ranges[0], (), is_tuple, is_optional, takes_schedule)


def _is_schedule(hint: Any) -> bool:
    """Return whether a type is a schedule of numbers, such as `bray_core`'s `Schedule`."""
    return dataclasses.is_dataclass(hint) and hasattr(hint, "at")


def _options(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        for argument in typing.get_args(hint):
            yield from _options(argument)
    else:
        yield hint


def _check(name: str, value: Any, rule: _Rule) -> None:
    if rule.is_optional and value is None:
        return
    if rule.takes_schedule and _is_schedule(type(value)):
        _check_number(f"{name}.start", value.start, rule)
        if rule.range is None or value.end != rule.range.above:  # a rate may fall to 0 in the end
            _check_number(f"{name}.end", value.end, rule)
    elif rule.choices:
        check_choice(name, value, rule.choices)
    elif rule.is_tuple:
        _check_tuple(name, value, rule)
    else:
        _check_number(name, value, rule)


def _check_number(name: str, value: Any, rule: _Rule) -> None:
    kind, words = (Integral, "a whole number") if rule.kind is int else (Real, "a number")
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ConfigError(f"{name}: expected {words}, got {value!r}")
    assert rule.range is not None
    try:
        is_within = float(value) in rule.range
    except OverflowError:
        wanted = rule.range.words()
        raise ConfigError(f"{name}: expected {wanted}, got a number of over 300 digits") from None
    if not is_within:
        raise ConfigError(f"{name}: expected {rule.range.words()}, got {value}")


def _check_tuple(name: str, value: Any, rule: _Rule) -> None:
    assert rule.range is not None
    if not isinstance(value, tuple | list) or not value:
        raise ConfigError(f"{name}: expected one or more numbers, got {value!r}")
    for one in value:
        if isinstance(one, bool) or not isinstance(one, Real) or float(one) not in rule.range:
            raise ConfigError(f"{name}: expected numbers of {rule.range.words()}, got {value!r}")
