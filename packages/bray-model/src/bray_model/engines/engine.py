"""What a backend must do, and the engines of one network: one for each version in use."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from bray_core import metrics
from bray_core.nested import Nested
from bray_core.protocols import Weights
from bray_model.versions.weights import VersionWeights


class Engine(Protocol):
    """One network in one process. Not thread-safe: `BatchExecutor` runs one forward at a time."""

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`, that share no memory with inputs or weights."""
        ...

    def weights(self) -> Weights | None:
        """Return the weights by name, not to be written to; None if they are fixed."""
        ...

    def load(self, weights: Weights) -> None:
        """Take weights of the same names, dtypes and shapes. They are never written to again."""
        ...

    def copy(self) -> Engine:
        """Return a separate engine of the same definition and weights."""
        ...


class EngineCache:
    """Lends the engine that holds a version, loading one where none does. Not thread-safe.

    The model that was made first, the root, has an engine of its own. Its clones share the others,
    and that one too while they are of the same version. An engine is reused rather than copied:
    copying a torch module takes longer than loading weights into one.

    Args:
        engine: Engine of the root, owned from now on.
        current: Version that the engine holds.
        cache_bytes: Bytes of weights that the other engines may hold together; one always may.
    """

    def __init__(self, engine: Engine, current: VersionWeights, cache_bytes: int) -> None:
        self._root = engine
        self._root_holds: VersionWeights | None = current
        weights = current.weights or {}
        nbytes = sum(array.nbytes for array in weights.values())
        self._capacity = max(1, cache_bytes // max(1, nbytes))
        self._engines: OrderedDict[int, tuple[VersionWeights, Engine]] = OrderedDict()
        """Engines by the identity of the version that they hold, the least recently used first."""
        self._spares: list[Engine] = []
        """Engines that nobody uses any more."""
        self._users: dict[object, VersionWeights] = {}
        """Version that each clone ran with last."""

    @property
    def num_engines(self) -> int:
        """Engines besides the root's."""
        return len(self._engines) + len(self._spares)

    def root_engine(self, current: VersionWeights) -> Engine:
        """Return the root's engine with the weights of `current`."""
        if self._root_holds is not current:
            weights = current.held()
            assert weights is not None
            self._root_holds = None  # until it has all of them
            self._root.load(weights)
            self._root_holds = current
        return self._root

    def engine(self, user: object, current: VersionWeights) -> Engine:
        """Return an engine with the weights of `current`, to be used before the next call.

        Args:
            user: Clone that asks; the version that it asked for before is kept no longer for it.

        Raises:
            Exception: whatever reading the weights raised.
        """
        if self._users.get(user) is not current:
            self._drop(user)
            self._users[user] = current
        if self._root_holds is current:
            return self._root
        if id(current) in self._engines:
            self._engines.move_to_end(id(current))
        else:
            weights = current.held()  # before an engine is taken for it, since it may fail
            assert weights is not None
            engine = self._free_engine()
            engine.load(weights)
            metrics.record("model/version_loads", 1, kind="count")
            self._engines[id(current)] = current, engine
        return self._engines[id(current)][1]

    def leave(self, user: object) -> None:
        """Keep nothing for `user` any more; one engine that nobody uses stays for the next."""
        self._drop(user)
        del self._spares[1:]

    def _drop(self, user: object) -> None:
        """Forget what `user` ran with; an engine that nobody else uses is free for another."""
        left = self._users.pop(user, None)
        if left is None or any(current is left for current in self._users.values()):
            return
        if id(left) in self._engines:
            self._spares.append(self._engines.pop(id(left))[1])

    def _free_engine(self) -> Engine:
        if self._spares:
            return self._spares.pop()
        if len(self._engines) < self._capacity:
            return self._root.copy()
        _, (_, engine) = self._engines.popitem(last=False)
        return engine
