"""An export as a service: the actor that its manifest names, or the bare model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import numpy as np

from bray_core import codec, json_body, json_fit
from bray_core.codec import encode
from bray_core.errors import (
    BrayError,
    CapacityError,
    CodecError,
    ConfigError,
    NotFoundError,
    ServiceError,
    SpecError,
)
from bray_core.json_body import JsonBody
from bray_core.protocols import ActorProtocol
from bray_model.model import Model
from bray_model.serving.admin_pages import NoService
from bray_model.serving.repository import ExportRepository, NewestModel, ServedModel
from bray_model.serving.row_codec import RowCodec
from bray_model.serving.several_actors import SeveralActors
from bray_model.tree_spec import Leaves
from bray_server.sessions.services import Service

logger = logging.getLogger(__name__)

_GROUP = "bray.actors"

Served: TypeAlias = Model | ServedModel | NewestModel


class ModelService:
    """Answers stateless calls with the bare model.

    A call's body is the codec's encoding of the list of the model's inputs, one row without
    batch dimension; the reply is that of `{"outputs": ..., "version": n}`. An error is
    `bad_request` for a body that does not fit, and `busy` where too many wait.
    """

    def __init__(self, model: Served) -> None:
        self._model = model
        self._codec = RowCodec(model.signature)

    async def tick(self, body: bytes) -> bytes:
        """Answer one call. Raises ServiceError."""
        return await self._answer(await self._row(body))

    async def ticks(self, bodies: Sequence[bytes]) -> Sequence[bytes | ServiceError]:
        """Answer several calls in one batch, but those that do not fit."""
        codec = self._current_codec()
        leaves = codec.read(bodies)
        if leaves is not None:
            return await self._answer_rows(codec, leaves)
        replies: list[bytes | ServiceError | None] = []
        rows: list[Leaves] = []
        for body in bodies:
            try:
                rows.append(await self._row(body))
                replies.append(None)
            except ServiceError as error:
                replies.append(error.with_traceback(None))  # which would hold on to the bodies
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        answers = iter(await self._answer_rows(codec, columns) if rows else [])
        return [next(answers) if reply is None else reply for reply in replies]

    def _current_codec(self) -> RowCodec:
        if self._codec.signature is not self._model.signature:  # another model took its place
            self._codec = RowCodec(self._model.signature)
        return self._codec

    async def _row(self, body: bytes) -> Leaves:
        """Return the leaves of the row that a call holds. Raises ServiceError: `bad_request`."""
        if type(body) is JsonBody:
            return await self._json_row(body)
        most = self._current_codec().max_bytes
        if len(body) > most:
            text = f"body: expected at most {most} bytes for the model's inputs, got {len(body)}"
            raise ServiceError("bad_request", text + json_body.said_nowhere(body))
        try:
            inputs = await codec.decode_async(body, max_bytes=most)
            if not isinstance(inputs, list):
                got = type(inputs).__name__
                raise SpecError(f"body: expected the list of the model's inputs, got {got}")
            return self._model.signature.input_tree.row(inputs)
        except (CodecError, SpecError) as error:
            raise ServiceError("bad_request", str(error)) from error

    async def _json_row(self, body: JsonBody) -> Leaves:
        """Return the leaves of the row that a call in JSON holds; errors as in `_row`."""
        try:
            inputs = await codec.decode_async(body, max_bytes=len(body))
            tree = self._model.signature.input_tree
            return tree.row(json_fit.fit(inputs, tree.spec, tree.name))
        except (CodecError, SpecError) as error:
            raise ServiceError("bad_request", str(error)) from error

    async def _answer(self, row: Leaves) -> bytes:
        model = self._model
        try:
            answer = await model.infer(*model.signature.input_tree.build(row))
        except SpecError as error:
            raise ServiceError("bad_request", str(error)) from error
        except CapacityError as error:
            raise ServiceError("busy", str(error)) from error
        return encode({"outputs": answer.outputs, "version": answer.version})

    async def _answer_rows(self, codec: RowCodec, leaves: Leaves) -> Sequence[bytes | ServiceError]:
        """Answer rows `[B, ...]` in one batch; where that fails, each by itself."""
        signature = codec.signature
        try:
            answer = await self._model.infer(*signature.input_tree.build(leaves), batch=True)
        except CapacityError as error:
            return [ServiceError("busy", str(error))] * len(leaves[0])
        except Exception as error:  # noqa: BLE001  a bad row among them fails alone
            logger.debug("%d calls failed together: %s", len(leaves[0]), error)
            rows = [[leaf[i, ...] for leaf in leaves] for i in range(len(leaves[0]))]
            return [await self._answer_or_error(row) for row in rows]
        outputs = signature.output_tree.leaves(answer.outputs)
        assert outputs is not None
        return codec.write(outputs, answer.version)

    async def _answer_or_error(self, row: Leaves) -> bytes | ServiceError:
        try:
            return await self._answer(row)
        except ServiceError as error:
            return error.with_traceback(None)
        except Exception as error:  # a request boundary: it becomes a reply
            logger.exception("a call failed")
            return ServiceError("service_error", f"{type(error).__name__}: {error}")


def make_service(
    model: Served, actor: Mapping[str, Any] | None
) -> Callable[[str], ActorProtocol] | ModelService:
    """Return what `bray_server.Server` serves for an export.

    Args:
        model: Model opened from the export.
        actor: Actor of the manifest. Its name is looked up among the *installed* entry points of
            `bray.actors`; a manifest can choose among them and nothing else.

    Raises:
        NotFoundError: no installed package brings that actor.
        ConfigError: its class cannot be made of an export.
    """
    if actor is None:
        return ModelService(model)
    installed = {entry.name: entry for entry in entry_points(group=_GROUP)}
    if actor["name"] not in installed:
        raise NotFoundError(
            f"actor {actor['name']!r}: not installed; installed: {sorted(installed) or 'none'}: "
            "install the package that brings it, such as bray-actor"
        )
    found = installed[actor["name"]]
    from_export = getattr(found.load(), "from_export", None)
    if not callable(from_export):
        raise ConfigError(
            f"actor {actor['name']!r}: {found.value}: expected a classmethod "
            "from_export(config, model), which returns what makes the actor of a session: derive "
            "it from bray_actor.PolicyActor, which has one, or add it"
        )
    service: Callable[[str], ActorProtocol] = from_export(actor["config"], model)
    return service


def service_of(repository: ExportRepository, name: str | None) -> Service:
    """Return what answers sessions and stateless calls, by one model; of several policies each
    session names its own."""
    if name is None:
        if len(repository.names) > 1:
            policies = _Policies(repository)
            if len(policies) > 1:
                return SeveralActors(policies, policies.agents)
            return NoService(
                f"several models are served, {repository.names}: "
                "start with --model NAME, or ask /v2/models/NAME/infer"
            )
        name = repository.names[0]
    served = repository.get(name)
    if served.manifest.actor is None:
        return ModelService(NewestModel(repository, name))
    return _NewestActors(repository, name)


class _Policies(Mapping[str, Callable[[str], ActorProtocol]]):
    """What makes the actors of sessions, by the policy's name, also of one that comes later."""

    def __init__(self, repository: ExportRepository) -> None:
        self._repository = repository
        self._made: dict[str, _NewestActors] = {}
        for name in self:  # what cannot be made now is told now
            self[name]

    def __getitem__(self, name: str) -> _NewestActors:
        if name not in self._made:
            if name not in list(self):
                raise KeyError(name)
            self._made[name] = _NewestActors(self._repository, name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return (one for one in self._repository.names if one in self._made or self._actor(one))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def agents(self) -> dict[str, list[str]]:
        """Return the patterns of the agents that a policy plays, by its name."""
        return {
            name: [str(one) for one in self._actor(name).get("config", {}).get("agents", [])]
            for name in self
        }

    def _actor(self, name: str) -> Mapping[str, Any]:
        if name in self._made:
            return self._made[name].actor
        return self._repository.get(name).manifest.actor or {}


class _NewestActors:
    """Makes the actors of sessions, by the newest export of a name whose actor can be made.

    Of an export that comes later and whose actor cannot be made, sessions begin with the one
    before, and the log says why.
    """

    def __init__(self, repository: ExportRepository, name: str) -> None:
        self._repository = repository
        self._name = name
        self._seen = repository.get(name)
        self._played = self._seen
        self._make: Any = make_service(self._seen, self._seen.manifest.actor)

    def __call__(self, session: str) -> ActorProtocol:
        self._look()
        actor: ActorProtocol = self._make(session)
        return actor

    @property
    def actor(self) -> Mapping[str, Any]:
        """The actor that the next session gets, as its manifest has it."""
        self._look()
        return self._played.manifest.actor or {}

    def _look(self) -> None:
        newest = self._repository.get(self._name)
        if newest is self._seen:  # or one with which its sessions go on
            return
        self._seen = newest
        try:
            if newest.manifest.actor is None:
                raise ConfigError("its manifest names no actor")
            self._make = make_service(newest, newest.manifest.actor)
        except Exception as error:  # the boundary to an actor that others made
            logger.warning(
                "%s version %d: sessions stay with the policy before: %s",
                self._name,
                newest.version,
                error,
                exc_info=not isinstance(error, BrayError),
            )
            return
        self._played = newest
