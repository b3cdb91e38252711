"""What one process has of a remote model: a replica, or ways to its inference workers."""

from __future__ import annotations

import threading

from bray_core.errors import ClosedError
from bray_model.distributed.blueprint import ModelBlueprint
from bray_model.distributed.client_model import BatchingClientModel, ClientModel
from bray_model.distributed.load_balancer import InferenceLoadBalancer
from bray_model.distributed.replica import ModelReplica
from bray_model.distributed.row_messages import encode_order
from bray_model.distributed.store_link import StoreLink, call_again
from bray_model.model import Model
from bray_model.versions.weights import WeightsStamp


class ModelAttachment:
    """A process's part of a remote model: a replica, or a way to its inference workers.

    Each part is made when it is first used; all handles of a model in a process share them.

    Args:
        blueprint: Blueprint of the model.
        link: Way to the model's store.
        model: Model that the replica is made of, where there is one already.
    """

    def __init__(
        self, blueprint: ModelBlueprint, link: StoreLink, model: Model | None = None
    ) -> None:
        self.blueprint = blueprint
        self._link = link
        self._lock = threading.RLock()
        self._replica: ModelReplica | None = None
        self._workers: InferenceLoadBalancer | None = None
        self._stand_ins: dict[str | None, ClientModel] = {}
        self._closed = False
        if model is not None:
            stamp = WeightsStamp(0, model.version, model.version)
            self._replica = ModelReplica(blueprint, model, link, stamp)

    def replica(self) -> ModelReplica:
        """Return this process's replica; needs what the module needs."""
        with self._lock:
            self._check_open()
            if self._replica is None:
                blueprint = self.blueprint
                # It comes from within the cluster, as every argument of a Ray call.
                module, example_inputs = self._link.unpickle(blueprint.definition)
                model = Model(
                    module,
                    example_inputs,
                    name=blueprint.name,
                    config=blueprint.config,
                    state=blueprint.signature.state,
                )
                self._replica = ModelReplica(blueprint, model, self._link, None)
            return self._replica

    def model(self, clone: str | None, frozen: int | None) -> Model | ClientModel:
        """Return what answers in this process.

        Args:
            clone: name of a clone; None: the model itself.
            frozen: Version of the clone.

        Raises:
            NotFoundError: the model has no such clone.
        """
        if self.blueprint.placement == "caller":
            replica = self.replica()
            return replica.model if clone is None else replica.clones.model(clone)
        with self._lock:
            self._check_open()
            if clone not in self._stand_ins:
                kind = BatchingClientModel if self.blueprint.placement == "proxy" else ClientModel
                self._stand_ins[clone] = kind(self.blueprint, self.workers(), clone, frozen)
            return self._stand_ins[clone]

    def workers(self) -> InferenceLoadBalancer:
        """Return this process's way to the inference workers."""
        with self._lock:
            self._check_open()
            if self._workers is None:
                blueprint = self.blueprint
                self._workers = InferenceLoadBalancer(
                    blueprint.name,
                    blueprint.num_workers,
                    self._link.worker,
                    blueprint.token,
                    blueprint.config.timeout_s,
                )
            return self._workers

    def saw(self, stamp: WeightsStamp) -> None:
        """Note what this process published: inference workers must not answer with older."""
        if self.blueprint.placement != "caller":
            self.workers().saw(stamp.sequence, stamp.version)

    def clone_version(self, name: str) -> int:
        """Return a clone's version. Raises NotFoundError; names the clones that there are."""
        version: int = call_again(self._link, "clone_version", name)
        return version

    def drop_clone(self, name: str) -> None:
        """Forget a clone here and in the inference workers."""
        with self._lock:
            stand_in = self._stand_ins.pop(name, None)
            replica = self._replica
        if replica is not None:
            replica.clones.drop(name)
        if stand_in is not None:
            stand_in.close()
        if self.blueprint.placement != "caller":
            workers = self.workers()
            workers.run(workers.tell_all(encode_order(drop=name)))

    def close(self) -> None:
        """End all; again is harmless."""
        with self._lock:
            self._closed = True
            replica, self._replica = self._replica, None
            workers, self._workers = self._workers, None
            stand_ins = list(self._stand_ins.values())
            self._stand_ins.clear()
        for stand_in in stand_ins:
            stand_in.close()
        if workers is not None:
            workers.close()
        if replica is not None:
            replica.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"model {self.blueprint.name!r}: closed")
