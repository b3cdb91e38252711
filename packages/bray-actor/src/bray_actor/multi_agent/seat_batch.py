"""The rows of one seat: all agents that it plays, in all environments, asked at once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence

from bray_actor.multi_agent.player import Player
from bray_actor.multi_agent.seat import Seat
from bray_actor.policy.row_block import RowBlock, row_of
from bray_core.errors import SpecError
from bray_core.protocols import Answer

Place = tuple[int, str]
"""Number of an environment, and an agent of it."""
_Key = tuple[str, int]


class SeatBatch:
    """Gives each agent of a seat a row of its own, from the beginning of its game to the end.

    Rows of those that do not act now are zeros. So the number of rows stays the same from round to
    round, and a row's outputs rest on no other's: a run with one seed repeats.

    Args:
        seat: Seat that answers.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._rows: dict[Place, int] = {}
        self._free: list[int] = []
        self._size = 0
        self._block = RowBlock(0)

    @property
    def is_empty(self) -> bool:
        """Whether no agent has a row."""
        return not self._rows

    def reserve(self, place: Place) -> None:
        """Give an agent the first row that is free."""
        if not self._free:
            self._free.append(self._size)
            self._size += 1
            self._block = RowBlock(self._size)
        self._rows[place] = heapq.heappop(self._free)

    def release(self, place: Place) -> None:
        """Take an agent's row back."""
        heapq.heappush(self._free, self._rows.pop(place))

    async def ask(self, players: Sequence[tuple[Place, Player]]) -> list[Answer]:
        """Answer those who act now, each in its row.

        Raises:
            SpecError: their observations differ, or do not fit the model; names the seat.
        """
        try:
            batch = self._block.fill({self._rows[at]: player.inputs for at, player in players})
            outputs, version = await self._seat.model.infer(*batch, batch=True)
        except SpecError as error:
            agents = sorted({at[1] for at, _ in players})
            raise SpecError(
                f"seat {self._seat.name}, agents {', '.join(agents)}: {error}: give agents of "
                "other spaces seats of their own"
            ) from error
        return [Answer(row_of(outputs, self._rows[at]), version) for at, _ in players]


class SeatBatches:
    """The rows of all seats that take part."""

    def __init__(self) -> None:
        self._batches: dict[_Key, SeatBatch] = {}

    def reserve(self, seat: Seat, place: Place) -> None:
        """Give an agent a row of its seat."""
        key = _key(seat)
        if key not in self._batches:
            self._batches[key] = SeatBatch(seat)
        self._batches[key].reserve(place)

    def release(self, seat: Seat, place: Place) -> None:
        """Take an agent's row back; a seat without any is forgotten."""
        batch = self._batches[_key(seat)]
        batch.release(place)
        if batch.is_empty:
            del self._batches[_key(seat)]

    async def act(self, players: Sequence[tuple[Place, Player]]) -> None:
        """Let all choose their actions; their models are asked side by side, each once.

        Raises:
            Exception: the error of a model.
        """
        by_seat: dict[_Key, list[tuple[Place, Player]]] = {}
        for at, player in players:
            by_seat.setdefault(_key(player.seat), []).append((at, player))
        answers = await asyncio.gather(
            *(self._batches[key].ask(those) for key, those in by_seat.items())
        )
        for those, of_seat in zip(by_seat.values(), answers, strict=True):
            for (_, player), answer in zip(those, of_seat, strict=True):
                player.act(answer)


def _key(seat: Seat) -> _Key:
    return seat.name, id(seat.model)
