"""The parts of a template as they were written, by kind and name, with the place of each.

The short form has one part of a kind (`trainer:`), the full form any number by name (`trainers:`).
What is singular becomes a named part here, so that all else sees names alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bray.training.algorithm import PARTS
from bray_core.errors import ConfigError
from bray_core.settings.choice import closest
from bray_core.settings.settings_build import SettingsBuilder
from bray_core.settings.settings_tree import Value, place_of, unwrap

PLURALS = {kind: f"{kind}s" for kind in (*PARTS, "render")}
"""The key of a kind's named parts, by the key of its only part."""
WHOLE = ("enable", "seed", "goal", "keep", "callbacks", "sinks")
"""Keys of a template that are no parts."""
NAME = re.compile(r"[a-z][a-z0-9_]*")
_OF_SOURCE = ("source", "actor", "render")


def is_full_form(tree: Value) -> bool:
    """Return whether a template has named parts, or says what kind its source is."""
    top = tree.value if isinstance(tree.value, dict) else {}
    source = top.get("source")
    has_kind = source is not None and isinstance(source.value, dict) and "kind" in source.value
    return has_kind or any(plural in top for plural in PLURALS.values())


def default_name(kind: str) -> str:
    """Return the name of a part that is the only one of its kind: `policy`, or `source`."""
    return "source" if kind in _OF_SOURCE else "policy"


def as_written(root: Value, key: str) -> str:
    """Return the dotted key of an only part, `sources.source.num_envs`, as `source.num_envs` where
    the template has no names of that kind.

    Args:
        root: the template.
        key: dotted key with the part's name.
    """
    plural, _, rest = key.partition(".")
    kind = next((one for one, named in PLURALS.items() if named == plural), None)
    name, _, setting = rest.partition(".")
    if kind is None or plural in root.value or name != default_name(kind):
        return key
    if kind == "trainer" and setting == "algorithm":
        return setting
    return f"{kind}.{setting}" if setting else kind


class WrittenParts:
    """The named parts of a template.

    Args:
        root: the template, which is changed: singular parts get names.
        problems: takes what is wrong with it.
    """

    def __init__(self, root: Value, problems: SettingsBuilder) -> None:
        self.root = root
        self._problems = problems
        has_trainers = "trainers" in root.value
        for kind, plural in PLURALS.items():
            self._expand(kind, plural)
        self._move_algorithm(has_trainers)

    # Reading.

    def names(self, kind: str) -> list[str]:
        """Return the names of the parts of a kind, in the order of the file."""
        return list(self._parts(kind))

    def is_absent(self, kind: str) -> bool:
        """Return whether there is no part of a kind, and no problem with those that are none."""
        plural = PLURALS[kind]
        told = (one.key.partition(".")[0] for one in self._problems.problems)
        return not self.names(kind) and not {plural, kind} & set(told)

    def part(self, kind: str, name: str) -> Value:
        """Return the settings of a part; none where it is not written."""
        return self._parts(kind).get(name, Value({}, self.root.place))

    def setting(self, kind: str, name: str, key: str) -> Any:
        """Return a setting as a plain value; None where it is not written."""
        written = self.part(kind, name).value
        return unwrap(written[key]) if isinstance(written, dict) and key in written else None

    def text(self, kind: str, name: str, key: str) -> str | None:
        """Return a setting that is text; None where it is another value: its type is told later."""
        value = self.setting(kind, name, key)
        return value if isinstance(value, str) else None

    def mapping(self, kind: str, name: str, key: str) -> dict[str, Any]:
        """Return a setting that is a mapping; empty where it is another value."""
        value = self.setting(kind, name, key)
        return value if isinstance(value, dict) else {}

    def places(self) -> dict[str, str]:
        """Return where parts and their settings were written, by dotted name."""
        found = {}
        for kind, plural in PLURALS.items():
            for name, part in self._parts(kind).items():
                found[f"{plural}.{name}"] = part.place
                settings = part.value if isinstance(part.value, dict) else {}
                for key, value in settings.items():
                    found[f"{plural}.{name}.{key}"] = value.place
        for key, child in self.whole().value.items():
            found[key] = child.place
            for name, value in child.value.items() if isinstance(child.value, dict) else ():
                found[f"{key}.{name}"] = value.place
        return found

    def whole(self) -> Value:
        """Return what is no part: goal, keep, seed, enable."""
        top = {key: child for key, child in self.root.value.items() if key in WHOLE}
        return Value(top, self.root.place)

    # What is wrong.

    def refuse(self, key: str, words: str, place: str | None = None) -> None:
        """Add a problem.

        Args:
            key: dotted name of the setting, such as `trainers.hunter.model`.
            words: what was expected, what came, and the cure.
            place: where it was written; None looks for the key.
        """
        self._problems.refuse(place or place_of(self.root, key), key, f"{key}: {words}")

    def is_known(self, key: str, got: object, known: Iterable[str], what: str) -> bool:
        """Return whether a wire leads to a part; otherwise add a problem with the nearest name.

        Args:
            key: dotted name of the wire.
            got: where it leads.
            known: the names of parts.
            what: the kind of part, in words.
        """
        known = list(known)
        if isinstance(got, str) and got in known:
            return True
        allowed = f"one of {', '.join(known)}" if known else "none, since there is none"
        self.refuse(
            key, f"expected the name of {what}, {allowed}, got {got!r}{closest(str(got), known)}"
        )
        return False

    # Overrides.

    def full_key(self, key: str) -> str:
        """Return an override's dotted key with the name of the part, as `trainers.policy.epochs`.

        Raises:
            ConfigError: there are several parts of the kind that it names.
        """
        kind, dot, rest = key.partition(".")
        if not dot or kind not in PLURALS:
            return key
        plural = PLURALS[kind]
        names = self.names(kind) or [default_name(kind)]
        if len(names) > 1:
            found = ", ".join(f"{plural}.{name}.{rest}" for name in names)
            raise ConfigError(f"{key}: expected one of {found}")
        return f"{plural}.{names[0]}.{rest}"

    # Names.

    def _parts(self, kind: str) -> Mapping[str, Value]:
        parts = self.root.value.get(PLURALS[kind])
        return parts.value if parts is not None and isinstance(parts.value, dict) else {}

    def _expand(self, kind: str, plural: str) -> None:
        """Give a name to the only part of a kind, and drop parts whose names nobody could write."""
        top = self.root.value
        if kind in top and plural in top:
            place = top.pop(kind).place
            words = f"expected either `{kind}`, the only one, or `{plural}`, by name, got both"
            self.refuse(kind, f"{words}: write it below `{plural}`", place)
        elif kind in top:
            only = top.pop(kind)
            top[plural] = Value({default_name(kind): only}, only.place)
        if plural not in top:
            return
        written = top[plural]
        if written.value is None:
            written.value = {}
        if not isinstance(written.value, dict):
            words = f"expected settings by name, such as {{{default_name(kind)}: {{}}}}"
            self.refuse(plural, f"{words}, got {str(unwrap(written))[:200]!r}")
            written.value = {}
        for name in [name for name in written.value if not NAME.fullmatch(name)]:
            words = "expected a name of small letters, digits and _, which begins with a letter"
            self.refuse(f"{plural}.{name[:100]}", words, written.value.pop(name).place)

    def _move_algorithm(self, has_trainers: bool) -> None:
        """Put the algorithm of a template with one trainer where those of several are."""
        algorithm = self.root.value.pop("algorithm", None)
        if algorithm is None:
            return
        if has_trainers:
            words = "expected in each of `trainers`, got it beside them: write it below a trainer"
            self.refuse("algorithm", words, algorithm.place)
            return
        trainers = self.root.value.setdefault("trainers", Value({}, algorithm.place))
        only = trainers.value.setdefault(default_name("trainer"), Value({}, algorithm.place))
        if only.value is None:
            only.value = {}
        if isinstance(only.value, dict):
            only.value["algorithm"] = algorithm
