"""A plain model in this process that follows a store, and the frozen clones made of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from pathlib import Path

from bray_core.errors import (
    BrayError,
    ClosedError,
    ConfigError,
    DeadlineError,
    WorkerLostError,
)
from bray_core.layout import Block, Layout
from bray_core.protocols import Weights
from bray_model.distributed.blueprint import ModelBlueprint
from bray_model.distributed.replica_clones import ReplicaClones
from bray_model.distributed.store_link import StoreLink, repeat_where_lost
from bray_model.distributed.weight_feed import WeightFeed
from bray_model.model import Model
from bray_model.versions.waiters import VersionWaiters
from bray_model.versions.weights import WeightsCheck, WeightsStamp

_RETRY_S = 0.2
_PUBLISH_S = 60.0
_REMEMBERED = 16

logger = logging.getLogger(__name__)


class ModelReplica:
    """A model that publishes to its store and takes what others publish, in a thread. Thread-safe.

    Args:
        blueprint: Blueprint of the model.
        model: Model of this process; owned from now on.
        link: Way to the store.
        stamp: Stamp of the weights that `model` holds; None: they are taken from the store first.
    """

    def __init__(
        self, blueprint: ModelBlueprint, model: Model, link: StoreLink, stamp: WeightsStamp | None
    ) -> None:
        self.blueprint = blueprint
        self.model = model
        self._link = link
        self._check = WeightsCheck(model.weights()[1])
        self._layout = Layout(self._check.spec)
        self._id = uuid.uuid4().hex
        self._updating = threading.Lock()
        self._applying = threading.Lock()
        self.clones = ReplicaClones(blueprint, model, link, self._layout)
        self._arrivals = VersionWaiters()
        self._stopped = threading.Event()
        self._feed = WeightFeed(link, self._stopped)
        self._incarnation = ""
        if stamp is None:
            stamp, block = self._first()
            model.adopt(self._layout.views(block), stamp.version)
        self._stamp = stamp
        self._history = deque([stamp], maxlen=_REMEMBERED)
        self._thread = threading.Thread(
            target=self._follow, name=f"bray-model-{model.name}-follow", daemon=True
        )
        self._thread.start()

    def _first(self) -> tuple[WeightsStamp, Block]:
        """Take the store's weights, also of one that dies meanwhile.

        Raises:
            WorkerLostError: The store was not back in time, or the model was closed.
        """
        deadline = time.monotonic() + _PUBLISH_S
        while True:
            try:
                self._link.call("uid")  # it waits until a store that was restarted has its weights
                self._incarnation = self._link.call("incarnation")
                self._feed.attach()
                return self._feed.first()
            except WorkerLostError:
                if time.monotonic() >= deadline or not self._link.exists():
                    raise
            time.sleep(_RETRY_S)

    @property
    def stamp(self) -> WeightsStamp:
        """Stamp of the weights that the model holds, or is about to take."""
        return self._stamp

    @property
    def shares(self) -> bool:
        """Whether new weights come by shared memory."""
        return self._feed.shares

    def sequence_of(self, version: int) -> int:
        """Return the latest sequence that this replica took `version` with; 0 if long ago."""
        return max((s.sequence for s in list(self._history) if s.version == version), default=0)

    async def wait_sequence(self, sequence: int, timeout_s: float) -> None:
        """Wait until the model holds weights of `sequence` or later. Raises DeadlineError."""
        if self._stamp.sequence >= sequence:
            return
        try:
            await self._arrivals.wait(sequence, lambda: self._stamp.sequence, timeout_s)
        except DeadlineError:
            raise DeadlineError(
                f"model {self.blueprint.name!r}: this replica is behind by "
                f"{sequence - self._stamp.sequence} updates, and was for {timeout_s:g} s"
            ) from None

    def publish(self, weights: Weights) -> WeightsStamp:
        """Give new weights to the store and take them; return their stamp.

        Raises:
            SpecError: a name, shape or dtype differs, or a number is not finite; names the
                parameter.
            ConfigError: another process published meanwhile.
            WorkerLostError: the store died and was not back in time.
        """
        self._check(weights)
        block = self._layout.pack(dict(weights))
        with self._updating:
            return self._update(self._stamp.after_publish(), block)

    def load(self, version: int) -> WeightsStamp:
        """Make a version from disk current everywhere; errors as in `Model.load`, `publish`."""
        store = self.blueprint.versions()
        weights = store.load(version)
        self._check(weights)
        block = self._layout.pack(dict(weights))
        with self._updating:
            return self._update(self._stamp.after_load(version, store.versions()[-1]), block)

    def checkpoint(self) -> Path | None:
        """Write this replica's version; None where the model has no directory."""
        if self.blueprint.directory is None:
            return None
        return self.blueprint.versions().save(*self.model.weights())

    def pin(self, version: int, pinned: bool) -> None:
        """Keep a version on disk whatever `retention` says, or no longer; as `Model.pin`."""
        self.blueprint.versions().pin(version, pinned)

    def _update(self, stamp: WeightsStamp, block: Block) -> WeightsStamp:
        try:
            self._link.call("put", stamp, block, self._id, timeout_s=_PUBLISH_S)
        except WorkerLostError:
            logger.warning("model %s: its store died; publishing again", self.model.name)
            repeat_where_lost(self._link, lambda: self._put_again(stamp, block))
        self._apply(stamp, block)
        return stamp

    def _put_again(self, stamp: WeightsStamp, block: Block) -> None:
        try:
            self._link.call("put", stamp, block, self._id, timeout_s=_PUBLISH_S)
        except ConfigError:
            # A replica may have given the store these very weights, from shared memory.
            held, other = self._link.call("poll", -1, 0.0)
            if held != stamp or other is None or (other != block).any():
                raise

    def _apply(self, stamp: WeightsStamp, block: Block) -> None:
        with self._applying:
            if stamp.sequence <= self._stamp.sequence:
                return
            self._history.append(stamp)  # first: an answer may ask for it at once
            self.model.adopt(self._layout.views(block), stamp.version)
            self._stamp = stamp
        self._arrivals.announce(stamp.sequence)

    def _follow(self) -> None:
        while not self._stopped.is_set() and self._link.is_connected:
            try:
                self._step()
            except (WorkerLostError, DeadlineError, ClosedError) as error:
                self._feed.detach()
                logger.info("model %s: store not reached: %s", self.model.name, error)
                if not self._link.exists():
                    return
                self._stopped.wait(_RETRY_S)
            except Exception:  # the thread's boundary: it must go on
                if self._stopped.is_set() or not self._link.is_connected:
                    return
                logger.exception("model %s: following its store failed", self.model.name)
                self._stopped.wait(_RETRY_S)

    def _step(self) -> None:
        if not self._feed.is_attached:
            incarnation = self._link.call("incarnation")
            if incarnation != self._incarnation:
                self._restore_store()
            self._incarnation = incarnation
            self._feed.attach()
        if update := self._feed.next(self._stamp.sequence):
            self._apply(*update)

    def _restore_store(self) -> None:
        """A store that was restarted is empty: give it what is held here."""
        with self._applying:  # weights and stamp of one moment
            stamp, (_, weights) = self._stamp, self.model.weights()
        block = self._layout.pack(dict(weights))
        if not self._link.call("begin", self.blueprint, stamp, block, True, timeout_s=_PUBLISH_S):
            self._give(stamp, block)
        self.clones.restore()

    def _give(self, stamp: WeightsStamp, block: Block) -> None:
        """Let the store have weights that are newer than its own."""
        if self._link.call("stamp")[0] < stamp.sequence:
            try:
                self._link.call("put", stamp, block, self._id, timeout_s=_PUBLISH_S)
            except ConfigError as error:
                logger.info("model %s: another replica was quicker: %s", self.model.name, error)

    def close(self) -> None:
        """Stop following; close the model and its clones."""
        self._stopped.set()
        self.clones.close()
        self.model.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
            if not self._thread.is_alive():
                with contextlib.suppress(BrayError):
                    self._feed.detach()
