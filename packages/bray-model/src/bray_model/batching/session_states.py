"""Recurrent state that a model keeps for its sessions, so that callers need not carry it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bray_core.errors import CapacityError, ConfigError, NotFoundError
from bray_core.nested import Nested
from bray_model.batching.executor import BatchRequest
from bray_model.config import ModelConfig
from bray_model.signature import Signature
from bray_model.tree_spec import Leaves


class SessionLostError(NotFoundError):
    """A session that was to go on has no state here."""


@dataclass(slots=True, eq=False)
class _Session:
    state: Leaves
    """Replaced by each answer, never written to: a batch may still read it."""
    used_s: float
    busy: bool = False


class SessionTurn:
    """One request of a session, whose answer brings the next state."""

    def __init__(self, session: _Session, request: BatchRequest, signature: Signature) -> None:
        self.request = request
        self._session = session
        self._signature = signature

    def keep(self, outputs: Nested) -> None:
        """Take the session's next state from the answer's outputs; they are copied."""
        leaves = self._signature.output_tree.leaves(outputs)
        assert leaves is not None
        self._session.state = [np.array(leaves[i]) for _, i in self._signature.state_leaves]


class SessionStates:
    """The states of one model's sessions. Thread-safe.

    Args:
        signature: Says which inputs are the state, and which outputs they come from.
        config: Number of sessions that are kept, and for how long.
        name: Name of the model, for messages.
    """

    def __init__(self, signature: Signature, config: ModelConfig, name: str) -> None:
        self._signature = signature
        self._config = config
        self._name = name
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """The one that was idle for longest first."""
        self._lock = threading.Lock()
        tree = signature.input_tree
        self._is_state = [False] * len(tree.paths)
        for index, _ in signature.state_leaves:
            self._is_state[index] = True
        self._given = signature.given_tree

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: str) -> bool:
        return session in self._sessions

    @contextmanager
    def turn(
        self, session: str, inputs: tuple[Nested, ...], batch: bool, must_exist: bool = False
    ) -> Iterator[SessionTurn]:
        """Begin a request; a session that is new, or was dropped, begins with zeros.

        Args:
            session: Name of the session.
            inputs: One row of all inputs but the state.
            batch: Whether the caller passed a batch, which a session does not take.
            must_exist: Whether a session that is not known is an error.

        Raises:
            ConfigError: the model has no state, or `batch` is set.
            SessionLostError: the session is not known, and `must_exist` is set.
            SpecError: an input does not fit.
            CapacityError: the session has a request under way, or there are too many sessions.
        """
        self._check(session, batch)
        leaves = self._given.row(inputs)
        found = self._begin(session, must_exist)
        try:
            yield SessionTurn(found, BatchRequest(self._join(leaves, found.state)), self._signature)
        finally:
            self._finish(session, found)

    def end(self, session: str) -> None:
        """Forget a session; again is harmless. What it has under way is answered."""
        with self._lock:
            self._sessions.pop(session, None)

    def _check(self, session: str, batch: bool) -> None:
        if not self._signature.state_leaves:
            raise ConfigError(
                f"session={session!r}: model {self._name!r} has no state: make it with "
                "state={input: output}, such as {'inputs[1]': 'outputs/state'}"
            )
        if not isinstance(session, str):
            raise ConfigError(f"session: expected a name, got {session!r}")
        if batch:
            raise ConfigError(f"session={session!r}: a session asks one row at a time: no batch")

    def _begin(self, name: str, must_exist: bool) -> _Session:
        with self._lock:
            now_s = time.monotonic()
            self._drop_idle(now_s)
            session = self._sessions.get(name)
            if session is None:
                if must_exist:
                    raise self._lost(name)
                session = self._new(name, now_s)
            if session.busy:
                raise CapacityError(
                    f"session {name!r}: has a request under way: await its answer first"
                )
            session.busy = True
            self._sessions.move_to_end(name)
        return session

    def _lost(self, name: str) -> SessionLostError:
        return SessionLostError(
            f"session {name!r}: model {self._name!r} does not know it: it was never begun, has "
            f"ended, was idle for more than {self._config.session_idle_s:g} s, or another export "
            "took the model's place: begin it anew"
        )

    def _drop_idle(self, now_s: float) -> None:
        while self._sessions:
            name, oldest = next(iter(self._sessions.items()))
            if oldest.busy or now_s - oldest.used_s <= self._config.session_idle_s:
                return
            del self._sessions[name]

    def _new(self, name: str, now_s: float) -> _Session:
        if len(self._sessions) >= self._config.max_sessions:
            raise CapacityError(
                f"session {name!r}: model {self._name!r} keeps max_sessions="
                f"{self._config.max_sessions} already: call end_session for those that are over, "
                "or raise it (`bray serve --max-sessions`)"
            )
        specs = self._signature.input_tree.specs
        state = [np.zeros(specs[i].shape, specs[i].dtype) for i, _ in self._signature.state_leaves]
        session = self._sessions[name] = _Session(state, now_s)
        return session

    def _finish(self, name: str, session: _Session) -> None:
        with self._lock:
            session.busy = False
            session.used_s = time.monotonic()
            if self._sessions.get(name) is session:  # else it was ended meanwhile
                self._sessions.move_to_end(name)

    def _join(self, given: Leaves, state: Leaves) -> Leaves:
        """Put both in the order of all inputs; that of `state_leaves` is the same."""
        leaves, states = iter(given), iter(state)
        return [next(states if is_state else leaves) for is_state in self._is_state]
