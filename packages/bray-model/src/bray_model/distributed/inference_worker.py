"""An inference worker: a replica that answers other processes over TCP."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from bray_core.errors import BrayError, CodecError
from bray_core.protocols import Answer
from bray_model.distributed.replica import ModelReplica
from bray_model.distributed.row_messages import (
    MAX_BYTES,
    decode_body,
    encode_answer,
    encode_error,
    encode_order,
)
from bray_model.model import Model
from bray_server import Limits
from bray_server.hosting.server_thread import ServerThread

logger = logging.getLogger(__name__)

_BEHIND_S = 30.0
"""How long a worker may be behind what the caller has seen already."""
_WAIT_S = 3600.0
_LIMITS = Limits(max_body_bytes=MAX_BYTES, tick_timeout_s=2 * _WAIT_S)


class InferenceService:
    """Answers stateless calls with a replica and its clones.

    What a request fails with is part of the reply, so that the caller can raise the same.
    """

    def __init__(self, replica: ModelReplica) -> None:
        self._replica = replica

    async def tick(self, body: bytes) -> bytes:
        """Answer one call."""
        try:
            content = decode_body(body)
            if "inputs" in content or "turn" in content:
                return await self._infer(content)
            if "wait" in content:
                return await self._wait(content)
            if "drop" in content:
                await asyncio.to_thread(self._replica.clones.drop, str(content["drop"]))
                return self._state()
            if "end" in content:
                (await self._model(content.get("clone"))).end_session(str(content["end"]))
                return self._state()
            raise CodecError(f"body: expected inputs, wait, drop or end, got {sorted(content)}")
        except Exception as error:
            if not isinstance(error, BrayError):
                logger.exception("model %s: a request failed", self._replica.model.name)
            return encode_error(error)

    async def _infer(self, content: dict[str, Any]) -> bytes:
        replica = self._replica
        model = await self._model(content.get("clone"))
        await replica.wait_sequence(int(content["sequence"]), _BEHIND_S)
        answer = await self._answer(model, content)
        sequence = 0 if content.get("clone") else replica.sequence_of(answer.version)
        return encode_answer(answer, model.signature, sequence)

    async def _answer(self, model: Model, content: dict[str, Any]) -> Answer:
        if "turn" in content:
            return await model.infer(*content["turn"], session=str(content["session"]))
        tree = model.signature.input_tree
        leaves = content["inputs"]
        if not isinstance(leaves, list) or len(leaves) != len(tree.paths):
            raise CodecError(f"inputs: expected the leaves {tree.paths}, got something else")
        return await model.infer(*tree.build(leaves), batch=bool(content["batch"]))

    async def _model(self, clone: Any) -> Model:
        if clone is None:
            return self._replica.model
        return await asyncio.to_thread(self._replica.clones.model, str(clone))

    async def _wait(self, content: dict[str, Any]) -> bytes:
        timeout_s = content.get("timeout_s")
        limit_s = _WAIT_S if timeout_s is None else min(float(timeout_s), _WAIT_S)
        await self._replica.model.wait_version(int(content["wait"]), limit_s)
        return self._state()

    def _state(self) -> bytes:
        stamp = self._replica.stamp
        return encode_order(version=stamp.version, sequence=stamp.sequence)


class InferenceWorker:
    """Hosts an `InferenceService`; listens as soon as it is made, also in place of another.

    Args:
        replica: Replica of this process.
        host: Address to bind.
        token: Token that callers must show.
    """

    def __init__(self, replica: ModelReplica, host: str, token: str) -> None:
        self._server = ServerThread(
            InferenceService(replica), host=host, tcp_port=0, limits=_LIMITS, tokens=(token,)
        )

    def address(self) -> str:
        """Return where callers reach it."""
        return self._server.addresses[0]

    def stats(self) -> dict[str, float]:
        """Return requests, errors and open sessions."""
        return self._server.stats()

    def close(self) -> None:
        """Stop listening."""
        self._server.close(0.0)
