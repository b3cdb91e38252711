"""Errors of a run, told by the names that a template gives its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from bray.templates.composition import Composition, LearnerPart, SourcePart
from bray.templates.written_parts import PLURALS
from bray_core.errors import CapacityError, ConfigError, NotFoundError

_HEAD = re.compile(r"([A-Za-z_]\w*)((?:\.[\w*-]+|\[\d+\])*): ")
_NO_MEMORY = ("allocate memory", "out of memory")
"""What torch says when the system or a GPU refuses memory."""


@dataclass(frozen=True, slots=True)
class PartNames:
    """The parts that an error may be about."""

    main: str
    """Dotted name of the part that is at hand, such as `sources.race`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Dotted name of the template's part by kind, such as `model`."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Settings of these parts, by kind; the first one that has a setting is meant by its name."""

    @classmethod
    def of_learner(cls, composition: Composition, part: LearnerPart) -> PartNames:
        """Return the parts of a learner."""
        agents = [n for n, one in composition.agents.items() if one.model == part.model]
        playing = [
            name
            for name, one in composition.sources.items()
            if set(one.agents.values()) & set(agents) or not one.agents
        ]
        source = next(iter(playing), part.name)
        names = {
            "trainer": f"trainers.{part.name}",
            "model": f"models.{part.model}",
            "buffer": f"buffers.{part.inputs.get('experience', part.name)}",
            "agent": f"agents.{next(iter(agents), part.name)}",
            "source": f"sources.{source}",
            "actor": f"actors.{source}",
        }
        return cls(f"trainers.{part.name}", names, dict(part.parts))

    @classmethod
    def of_source(cls, part: SourcePart) -> PartNames:
        """Return the parts of a source."""
        names = {
            "source": f"sources.{part.name}",
            "opponents": f"sources.{part.name}.opponents",
            "actor": f"actors.{part.name}",
        }
        opponents = getattr(part.config, "opponents", None)
        configs = {"source": part.config, "opponents": opponents, "actor": part.actor}
        return cls(names["source"], names, configs)

    def told(self, message: str) -> str:
        """Return an error's message which begins with the dotted name of a setting of the template.

        Args:
            message: what was raised; it may begin with a setting, or with its part's kind.
        """
        found = _HEAD.match(message)
        if found is None:
            return f"{self.main}: {message}"
        word, rest = found[1], message[found.end(1) :]
        if word in PLURALS.values() or word == "goal":
            return message
        if word in self.names and found[2]:
            return self.names[word] + rest
        for kind, config in self.configs.items():
            known = fields(config) if is_dataclass(config) else ()
            if word in {one.name for one in known}:
                return f"{self.names[kind]}.{message}"
        return f"{self.main}: {message}"


@contextmanager
def errors_of(parts: PartNames) -> Iterator[None]:
    """Tell what is wrong with parts by the template's names; memory that is refused, too."""
    try:
        with memory_errors_of(parts.main):
            yield
    except NotFoundError as error:
        raise NotFoundError(parts.told(str(error))) from error
    except ConfigError as error:
        raise ConfigError(parts.told(str(error))) from error


@contextmanager
def memory_errors_of(what: str) -> Iterator[None]:
    """Tell in words that the system refuses memory.

    Args:
        what: what asks for it, for the message.

    Raises:
        CapacityError: there is not enough for the settings.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_other = not any(words in str(error) for words in _NO_MEMORY)
        if isinstance(error, RuntimeError) and is_other:
            raise
        words = (str(error) or "no memory is left").splitlines()[0][:200]
        raise CapacityError(
            f"{what}: expected settings that fit into this machine's memory: {words}"
        ) from error
