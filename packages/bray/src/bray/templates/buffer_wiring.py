"""What flows into which buffer, and out of it: who fills it, who reads it, what is mixed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bray.templates.wires import EXPERIENCE, Wires
from bray.templates.written_parts import WrittenParts


class BufferWiring:
    """Resolves and checks what leads to buffers.

    Args:
        written: the template; takes what is wrong.
        wires: the wires; those of trainers and agents are there when buffers are asked for.
    """

    def __init__(self, written: WrittenParts, wires: Wires) -> None:
        self._written = written
        self._wires = wires
        self._buffers = written.names("buffer")

    def wire(self, name: str) -> None:
        """Find where an agent's experience goes."""
        told = self._written.setting("agent", name, "buffer")
        key = f"agents.{name}.buffer"
        trainer = self._wires.trainer_of(self._wires.agents[name])
        if told is not None:
            named = list(told) if isinstance(told, dict) and told else [told]
            if not all(self._takes(key, one) for one in named):
                return
            shares = told if isinstance(told, dict) else {told: 1.0}
            if self._are_shares(key, shares):
                self._check_drawn(key, trainer, shares)
                self._wires.buffer_of[name] = shares
        elif trainer is not None and EXPERIENCE in self._wires.inputs_of[trainer]:
            buffer = self._wires.inputs_of[trainer][EXPERIENCE]
            taking = [one for one in self._leaves(buffer) if self._kind(one) != "dataset"]
            if len(taking) > 1:
                self._written.refuse(key, f"missing: expected one of {', '.join(taking)}")
            elif taking:
                self._wires.buffer_of[name] = {taking[0]: 1.0}

    def _takes(self, key: str, buffer: object) -> bool:
        """Return whether there is a buffer that is pushed into."""
        if not self._written.is_known(key, buffer, self._buffers, "a buffer"):
            return False
        kind = self._kind(str(buffer))
        if kind in ("dataset", "mixture"):
            words = f"expected a queue or a replay, got {buffer!r}, a {kind}"
            self._written.refuse(key, f"{words}: nobody pushes into it")
        return kind not in ("dataset", "mixture")

    def _check_drawn(self, key: str, trainer: str | None, shares: Mapping[str, Any]) -> None:
        """Refuse shares of what is no replay of the trainer's mixture."""
        inputs = {} if trainer is None else self._wires.inputs_of[trainer]
        drawn = self._leaves(inputs[EXPERIENCE]) if EXPERIENCE in inputs else []
        other = next((one for one in shares if len(shares) > 1 and one not in drawn), None)
        if other is not None:
            words = (
                f"trainers.{trainer} draws from" if trainer is not None else "a trainer draws from"
            )
            self._written.refuse(
                f"{key}.{other}", f"expected a replay of a mixture that {words}, got {other!r}"
            )

    def _are_shares(self, key: str, shares: Mapping[str, Any]) -> bool:
        for name, share in shares.items():
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 < share < math.inf:
                self._written.refuse(f"{key}.{name}", f"expected a share above 0, got {share!r}")
                return False
        return True

    def _kind(self, buffer: str) -> str | None:
        return self._written.text("buffer", buffer, "kind")

    def _of(self, buffer: str) -> list[str]:
        """Return the names of a mixture's buffers that exist."""
        if self._kind(buffer) != "mixture":
            return []
        of = self._written.mapping("buffer", buffer, "of")
        return [name for name in of if name in self._buffers]

    def _leaves(self, buffer: str, seen: Iterable[str] = ()) -> list[str]:
        """Return the buffers below a mixture that are none; another buffer by itself."""
        if self._kind(buffer) != "mixture":
            return [buffer]
        inner = [one for one in self._of(buffer) if one not in (*seen, buffer)]
        found = (leaf for one in inner for leaf in self._leaves(one, (*seen, buffer)))
        return list(dict.fromkeys(found))

    def check(self) -> None:
        """Refuse buffers that nobody fills or reads, and mixtures that have no end."""
        read = {one for inputs in self._wires.inputs_of.values() for one in inputs.values()}
        read |= {one for buffer in self._buffers for one in self._of(buffer)}
        for name in self._buffers:
            for one in self._written.mapping("buffer", name, "of"):
                if self._kind(name) == "mixture":
                    known = [buffer for buffer in self._buffers if buffer != name] + [name]
                    self._written.is_known(f"buffers.{name}.of.{one}", one, known, "a buffer")
            if name not in read:
                self._written.refuse(
                    f"buffers.{name}",
                    "nobody reads it: name it in the `inputs` of a trainer, or remove it",
                )
            is_filled = self._kind(name) in ("dataset", "mixture")
            if not is_filled and name not in self._wires.filled():
                self._written.refuse(
                    f"buffers.{name}",
                    "nobody fills it: name it as the `buffer` of an agent, or give it a kind that "
                    "brings its own (dataset, mixture)",
                )
        self._check_cycles()
        for trainer, inputs in self._wires.inputs_of.items():
            for given, name in inputs.items():
                self._check_input(trainer, given, name)

    def _check_input(self, trainer: str, given: str, buffer: str) -> None:
        """Refuse experience that nobody plays, and demonstrations that are no data sets."""
        kinds = {one: self._kind(one) for one in self._leaves(buffer)}
        key = f"trainers.{trainer}.inputs.{given}"
        if given == EXPERIENCE and kinds and all(one == "dataset" for one in kinds.values()):
            self._written.refuse(
                key,
                f"expected a buffer that is played into, got {buffer!r}, which holds data sets "
                "alone: mix a replay in, or learn from the data set by iql, cql, td3_bc or bc",
            )
        other = next((one for one, kind in kinds.items() if kind != "dataset"), None)
        if given != EXPERIENCE and other is not None:
            self._written.refuse(
                key, f"expected a data set, or a mixture of data sets, got {other!r}, which is none"
            )
        elif given != EXPERIENCE and any(self._of(one) for one in self._of(buffer)):
            self._written.refuse(key, "expected a mixture of data sets, got one of mixtures")

    def _check_cycles(self) -> None:
        told: set[str] = set()
        for name in self._buffers:
            cycle = self._cycle_from(name, [name])
            if cycle and name not in told:
                told |= set(cycle)
                self._written.refuse(
                    f"buffers.{name}.of", f"a cycle of mixtures: {' → '.join(cycle)}"
                )

    def _cycle_from(self, start: str, path: list[str]) -> list[str]:
        for one in self._of(path[-1]):
            if one == start:
                return [*path, one]
            if one not in path and (found := self._cycle_from(start, [*path, one])):
                return found
        return []
