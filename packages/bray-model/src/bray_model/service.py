"""An export as a service: the actor that its manifest names, or the bare model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from bray_core.codec import decode, encode
from bray_core.errors import CapacityError, CodecError, NotFoundError, ServiceError, SpecError
from bray_core.protocols import Actor, Model

_GROUP = "bray.actors"


class ModelService:
    """Answers stateless calls with the bare model.

    A call's body is the codec's encoding of the list of the model's inputs, one row without
    batch dimension; the reply is that of `{"outputs": ..., "version": n}`.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    async def tick(self, body: bytes) -> bytes:
        """Answer one call.

        Raises:
            ServiceError: `bad_request` for a body that does not fit; `busy` if too many wait.
        """
        try:
            inputs = decode(body)
            if not isinstance(inputs, list):
                got = type(inputs).__name__
                raise SpecError(f"body: expected the list of the model's inputs, got {got}")
            answer = await self._model.infer(*inputs)
        except (CodecError, SpecError) as error:
            raise ServiceError("bad_request", str(error)) from error
        except CapacityError as error:
            raise ServiceError("busy", str(error)) from error
        return encode({"outputs": answer.outputs, "version": answer.version})


def make_service(
    model: Model, actor: Mapping[str, Any] | None
) -> Callable[[str], Actor] | ModelService:
    """Return what `bray_server.Server` serves for an export.

    Args:
        model: opened from the export.
        actor: the manifest's. Its name is looked up among the *installed* entry points of
            `bray.actors`; a manifest can choose among them and nothing else.

    Raises:
        NotFoundError: no installed package brings that actor.
    """
    if actor is None:
        return ModelService(model)
    installed = {entry.name: entry for entry in entry_points(group=_GROUP)}
    if actor["name"] not in installed:
        raise NotFoundError(
            f"actor {actor['name']!r}: not installed; installed: {sorted(installed) or 'none'}: "
            "install the package that brings it, such as bray-actor"
        )
    service: Callable[[str], Actor] = (
        installed[actor["name"]].load().from_export(actor["config"], model)
    )
    return service
