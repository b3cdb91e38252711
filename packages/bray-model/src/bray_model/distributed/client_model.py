"""Stand-ins for `Model` in a process whose rows are computed in inference workers."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from bray_core.errors import ClosedError, ConfigError
from bray_core.nested import Nested
from bray_core.protocols import Answer
from bray_model.batching.batcher import LoopBatchers
from bray_model.batching.executor import BatchRequest, run_or_split
from bray_model.distributed.blueprint import ModelBlueprint
from bray_model.distributed.load_balancer import InferenceLoadBalancer
from bray_model.distributed.row_messages import (
    encode_order,
    encode_request,
    encode_turn,
    output_leaves,
)
from bray_model.signature import Signature

_Computed: TypeAlias = tuple[list[np.ndarray[Any, Any]], int]
"""Output leaves and version."""


class ClientModel:
    """Stands for a `Model`: sends each request to an inference worker. Thread-safe.

    Args:
        blueprint: Blueprint of the model.
        workers: Way to the inference workers.
        clone: name of a clone; None: the model itself.
        frozen: Version of the clone.
    """

    def __init__(
        self,
        blueprint: ModelBlueprint,
        workers: InferenceLoadBalancer,
        clone: str | None,
        frozen: int | None,
    ) -> None:
        self._blueprint = blueprint
        self._workers = workers
        self._clone = clone
        self._frozen = frozen
        self._closed = False

    @property
    def signature(self) -> Signature:
        """What the model takes and gives."""
        return self._blueprint.signature

    @property
    def version(self) -> int:
        """The newest version that this process has published or been answered with."""
        return self._workers.version if self._frozen is None else self._frozen

    async def infer(
        self, *inputs: Nested, batch: bool = False, session: str | None = None
    ) -> Answer:
        """Answer one row, or with `batch` rows `[B, ...]`; as `Model.infer`."""
        work = self._work(inputs, batch, session)
        leaves, version = await self._workers.elsewhere(work)
        return Answer(self.signature.output_tree.build(leaves), version)

    def __call__(self, *inputs: Nested, batch: bool = False, session: str | None = None) -> Nested:
        """Wait for the answer in this thread; as `Model.__call__`."""
        leaves, _ = self._workers.run(self._work(inputs, batch, session))
        return self.signature.output_tree.build(leaves)

    def end_session(self, session: str) -> None:
        """Drop the state of a session, soon; as `Model.end_session`."""
        order = encode_order(end=session, clone=self._clone)
        self._workers.end_session(self._key(session), order)

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until a worker has reached `version`; as `Model.wait_version`."""
        return int(await self._workers.elsewhere(self._workers.wait(version, timeout_s)))

    def close(self) -> None:
        """Refuse further use; again is harmless."""
        self._closed = True

    def _work(
        self, inputs: tuple[Nested, ...], batch: bool, session: str | None
    ) -> Coroutine[Any, Any, _Computed]:
        if session is None:
            return self._compute(self._request(inputs, batch))
        self._check_open()
        if batch:
            raise ConfigError(f"session={session!r}: a session asks one row at a time: no batch")
        return self._compute_in(session, inputs)

    def _request(self, inputs: tuple[Nested, ...], batch: bool) -> BatchRequest:
        self._check_open()
        return BatchRequest.of(self.signature, inputs, batch)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"model {self._blueprint.name!r}: closed")

    async def _compute(self, request: BatchRequest) -> _Computed:
        """Return the output leaves and the version; runs on the workers' loop."""
        return self._taken(
            await self._workers.ask(encode_request(request, self._clone, self._sequence))
        )

    async def _compute_in(self, session: str, inputs: tuple[Nested, ...]) -> _Computed:
        """The same where a worker has the state."""
        body = encode_turn(session, inputs, self._clone, self._sequence)
        return self._taken(await self._workers.ask_owner(self._key(session), body))

    @property
    def _sequence(self) -> int:
        return 0 if self._clone else self._workers.sequence

    def _taken(self, reply: dict[str, Any]) -> _Computed:
        if not self._clone:
            self._workers.saw(reply["sequence"], reply["version"])
        return output_leaves(reply, self.signature), reply["version"]

    def _key(self, session: str) -> str:
        return f"{self._clone or ''}/{session}"


class BatchingClientModel(ClientModel):
    """Stands for a `Model`: joins requests of this process, and sends each batch as one request."""

    def __init__(
        self,
        blueprint: ModelBlueprint,
        workers: InferenceLoadBalancer,
        clone: str | None,
        frozen: int | None,
    ) -> None:
        super().__init__(blueprint, workers, clone, frozen)
        config = replace(blueprint.config, inline_below_us=0)  # the loop must not wait for a worker
        self._pool = ThreadPoolExecutor(
            blueprint.num_workers, thread_name_prefix=f"bray-model-{blueprint.name}-proxy"
        )
        self._batchers = LoopBatchers(self._run, config, self._pool, blueprint.name)

    async def infer(
        self, *inputs: Nested, batch: bool = False, session: str | None = None
    ) -> Answer:
        """Answer one row, or with `batch` rows `[B, ...]`; as `Model.infer`."""
        if session is not None:
            return await super().infer(*inputs, batch=batch, session=session)
        return await self._batchers.answer(self._request(inputs, batch))

    def _run(self, requests: Sequence[BatchRequest]) -> list[Answer | Exception]:
        """Answer a batch; if the worker refuses it, each request goes alone."""
        return run_or_split(self._run_joined, requests)

    def _run_joined(self, requests: Sequence[BatchRequest]) -> list[Answer | Exception]:
        outputs, version = self._workers.run(self._compute(_joined(requests)))
        if len(requests) == 1 and not requests[0].batch:
            return [Answer(self.signature.output_tree.build(outputs), version)]
        answers: list[Answer | Exception] = []
        start = 0
        for request in requests:
            stop = start + request.rows
            part: Any = slice(start, stop) if request.batch else (start, ...)
            leaves = [leaf[part] for leaf in outputs]
            answers.append(Answer(self.signature.output_tree.build(leaves), version))
            start = stop
        return answers

    def close(self) -> None:
        """Fail those who wait with ClosedError and refuse further use; again is harmless."""
        super().close()
        self._batchers.close()
        self._pool.shutdown(wait=False)


def _joined(requests: Sequence[BatchRequest]) -> BatchRequest:
    if len(requests) == 1:
        return requests[0]
    columns = zip(*[_rows(request) for request in requests], strict=True)
    leaves = [np.concatenate(column) for column in columns]
    return BatchRequest(leaves, sum(request.rows for request in requests), True)


def _rows(request: BatchRequest) -> list[np.ndarray[Any, Any]]:
    return request.leaves if request.batch else [leaf[None] for leaf in request.leaves]
