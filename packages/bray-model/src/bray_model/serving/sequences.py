"""Sequences of the Open Inference Protocol: whose turn it is, and which worker keeps the state."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import NamedTuple

from bray_core.errors import ServiceError
from bray_core.protocols import Answer
from bray_model.batching.session_states import SessionLostError
from bray_model.model import Model
from bray_model.serving.infer_message import SequenceStep
from bray_model.serving.infer_request import InferRequest
from bray_model.serving.repository import ExportRepository, ServedModel
from bray_server import PageReply, PageRequest

_KEY = b"page "
"""Begins the keys by which the workers of a group find the owner of what a page keeps."""


class _Owned(NamedTuple):
    model: str
    sequence: str
    used_s: float


class SequenceSteps:
    """Answers the steps of sequences, or lets the worker answer that keeps a sequence.

    A sequence begins with `sequence_start`, which begins it anew where there is one of its id, and
    ends with `sequence_end`, or when it was idle for too long, or when another export takes its
    model's place. A further step of it is then refused: it would be answered from zeros.

    Args:
        repository: holds the models; a model's `config.session_idle_s` is how long a sequence may
            rest.
    """

    def __init__(self, repository: ExportRepository) -> None:
        self._repository = repository
        self._owned: OrderedDict[bytes, _Owned] = OrderedDict()
        """Sequences that this worker keeps, by key; the one that was idle for longest first."""

    async def elsewhere(
        self, name: str, step: SequenceStep, request: PageRequest
    ) -> PageReply | None:
        """Return the answer of the worker that keeps a sequence; None: answer it here.

        Args:
            name: Name of the model.
            step: Step of the sequence.
            request: The request that holds it.

        Raises:
            ServiceError: That worker refused, or nobody keeps the sequence.
        """
        others = request.others
        if others is None:
            return None
        key = _key(name, step)
        if key not in self._owned and step.is_first:
            try:
                others.claim(key)
                self._owned[key] = _Owned(name, step.name, time.monotonic())
            except ServiceError as error:
                if error.code != "session_exists":
                    raise
        if key in self._owned or request.is_forwarded:
            return None
        try:
            return await others.forward_page(key, request)
        except ServiceError as error:
            raise _explained(error, name, step) from error

    async def answer(
        self, name: str, model: Model | ServedModel, asked: InferRequest, request: PageRequest
    ) -> Answer:
        """Answer a step here; raises what `Model.infer` does."""
        step = asked.sequence
        assert step is not None
        try:
            if step.is_first:
                model.end_session(step.name)
            answer = await model.infer(
                *asked.inputs, session=step.name, must_exist=not step.is_first
            )
            if step.is_last:
                model.end_session(step.name)
        except SessionLostError as error:
            raise ServiceError("bad_request", _cure(str(error))) from error
        finally:
            self._note(name, step, request)
        return answer

    def _note(self, name: str, step: SequenceStep, request: PageRequest) -> None:
        """Keep what this worker owns in line with what its models hold."""
        if request.others is None:
            return
        key = _key(name, step)
        self._owned.pop(key, None)
        if self._is_held(name, step.name):
            self._owned[key] = _Owned(name, step.name, time.monotonic())
        else:
            request.others.release(key)
        while self._owned:
            key, oldest = next(iter(self._owned.items()))
            models = self._models(oldest.model)
            idle_s = max((model.config.session_idle_s for model in models), default=0.0)
            if time.monotonic() - oldest.used_s <= idle_s:
                return
            for model in models:
                model.end_session(oldest.sequence)
            del self._owned[key]
            request.others.release(key)

    def _is_held(self, name: str, sequence: str) -> bool:
        return any(model.has_session(sequence) for model in self._models(name))

    def _models(self, name: str) -> list[Model]:
        return self._repository.models(name) if name in self._repository.names else []


def _key(name: str, step: SequenceStep) -> bytes:
    text = f"{name}\0{step.name}".encode()
    return _KEY + hashlib.blake2b(text, digest_size=16).hexdigest().encode()


def _explained(error: ServiceError, name: str, step: SequenceStep) -> ServiceError:
    """Say it of the sequence, not of the key that the workers know it by."""
    of = f"sequence {step.name} of model {name!r}"
    if error.code == "unknown_session":
        why = "was never begun, has ended, or was idle for too long"
        return ServiceError("bad_request", _cure(f"{of}: {why}: begin it anew"))
    if error.code == "worker_lost":
        return ServiceError("worker_lost", _cure(f"{of}: its worker died: begin it anew"))
    if error.code == "overloaded" and _KEY.decode() in error.message:
        return ServiceError("overloaded", f"{of}: its worker does not take requests now: ask again")
    return error


def _cure(message: str) -> str:
    return f"{message} (with sequence_start)"
