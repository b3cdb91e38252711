"""The relay of a node without the store: gets each version once, for the node's replicas."""

from __future__ import annotations

import logging
import threading

from bray_core.errors import BrayError, ClosedError, DeadlineError, WorkerLostError
from bray_core.layout import Block
from bray_model.distributed.store_link import StoreLink, WeightSource
from bray_model.distributed.weight_store import WeightBoard
from bray_model.versions.weights import WeightsStamp

logger = logging.getLogger(__name__)

_POLL_S = 10.0
_GRACE_S = 20.0
_RETRY_S = 0.2


class WeightRelay:
    """Follows its parent in the tree of relays, in a thread; a parent that dies is replaced.

    Args:
        link: Way to the store.
        name: Name of the relay.
        model: Name of the model.

    Raises:
        WorkerLostError: the store died.
    """

    def __init__(self, link: StoreLink, name: str, model: str) -> None:
        self._link = link
        self._name = name
        self._model = model
        self._stopped = threading.Event()
        self._parent: str | None = None
        self._source: WeightSource = link
        self._num_received = 0
        self._join(None)
        self._board = WeightBoard(model, *self._first())
        self._thread = threading.Thread(
            target=self._follow, name=f"bray-model-{model}-relay", daemon=True
        )
        self._thread.start()

    def shared(self) -> str | None:
        """Return the file that replicas on this node read; None: there is none."""
        return self._board.shared()

    def stamp(self) -> WeightsStamp:
        """Return the stamp of the newest weights here."""
        return self._board.stamp

    def poll(self, held: int, timeout_s: float) -> tuple[WeightsStamp, Block | None]:
        """Wait for other weights than those held: see `WeightBoard.poll`."""
        return self._board.poll(held, timeout_s)

    def stats(self) -> dict[str, int]:
        """Return the number of blocks received and sent."""
        return {"blocks_received": self._num_received, "blocks_sent": self._board.num_sent}

    def parent(self) -> str | None:
        """Return the relay that it asks; None: the store."""
        return self._parent

    def close(self) -> None:
        """Stop following and remove the file."""
        self._stopped.set()
        self._board.close()

    def _join(self, lost: str | None) -> None:
        self._parent = self._link.call("join", self._name, lost)
        self._source = self._link if self._parent is None else self._link.relay(self._parent)

    def _first(self) -> tuple[WeightsStamp, Block]:
        while True:
            stamp, block = self._poll(-1, 0.0)
            if block is not None:
                return stamp, block

    def _poll(self, held: int, wait_s: float) -> tuple[WeightsStamp, Block | None]:
        try:
            stamp, block = self._source.call("poll", held, wait_s, timeout_s=wait_s + _GRACE_S)
        except BrayError as error:
            if self._parent is None:
                raise
            logger.info("relay %s: %s is lost: %s", self._name, self._parent, error)
            self._join(self._parent)
            return self._link.call("stamp"), None
        self._num_received += block is not None
        return stamp, block

    def _follow(self) -> None:
        while not self._stopped.is_set() and self._link.is_connected:
            try:
                self._step()
            except (WorkerLostError, DeadlineError, ClosedError) as error:
                logger.info("relay %s: store not reached: %s", self._name, error)
                self._stopped.wait(_RETRY_S)
            except Exception:  # the thread's boundary: it must go on
                if self._stopped.is_set() or not self._link.is_connected:
                    return
                logger.exception("relay %s: following failed", self._name)
                self._stopped.wait(_RETRY_S)

    def _step(self) -> None:
        held = self._board.stamp.sequence
        stamp, block = self._poll(held, _POLL_S)
        if block is not None:
            self._board.put(stamp, block)
        elif stamp.sequence < held:  # the store was restarted: a replica gives it newer ones soon
            self._stopped.wait(_RETRY_S)
