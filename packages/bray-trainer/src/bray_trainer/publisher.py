"""Publishes weights of the trained modules to the models that serve them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bray_core import metrics
from bray_core.errors import DeadlineError
from bray_core.protocols import ModelProtocol
from bray_trainer.background_thread import BackgroundThread
from bray_trainer.config import TrainerConfig
from bray_trainer.distributed.sharding import whole
from bray_trainer.transfer import side_stream

_FLUSH_TIMEOUT_S = 120.0


class Publisher:
    """Publishes each module's weights to its model, in a thread of its own while it is open.

    The loop only copies the weights. Of what is offered while a version is on its way, the newest
    is published next and the others are left out, unless it is opened to leave out none.

    Args:
        modules: Modules by name.
        models: Models by name, for some of the modules; the first model's version counts.
        buffers: Buffers; those with `set_policy_version` are told of each new version.
        config: Gives how often to publish.
        device: Device of the modules.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        models: Mapping[str, ModelProtocol],
        buffers: Iterable[Any],
        config: TrainerConfig,
        device: torch.device,
    ) -> None:
        self._modules = {name: modules[name] for name in models}
        self._models = dict(models)
        self._listeners = [b for b in buffers if hasattr(b, "set_policy_version")]
        self._config = config
        self._offered = 0.0
        self.version = 0
        self._changed = threading.Condition()
        stream = side_stream(device)
        self._free = [_Snapshot(stream), _Snapshot(stream)]  # one on its way, one waits
        self._next: _Snapshot | None = None
        self._is_busy = False
        self._is_closing = False
        self._leaves_out = True
        self._error: Exception | None = None
        self._thread = BackgroundThread("trainer-publish")

    def begin(self) -> None:
        """Take up the version that the models have already."""
        if self._models:
            self._announce(next(iter(self._models.values())).version)

    def open(self, *, leave_out: bool) -> None:
        """Publish in the background from now on.

        Args:
            leave_out: Whether versions are left out rather than waited for.
        """
        self._offered = time.monotonic()
        self._leaves_out = leave_out
        if self._models:
            self._is_closing = False
            self._thread.start(self._serve)

    def close(self) -> None:
        """End the thread; what was offered and not flushed may be left out."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if not self._thread.is_idle(_FLUSH_TIMEOUT_S):
            raise DeadlineError(f"model: publishing takes longer than {_FLUSH_TIMEOUT_S:g} s")

    def is_due(self, replays: int) -> bool:
        """Return whether to publish after so many replays."""
        every, interval_s = self._config.publish_every, self._config.publish_interval_s
        if every is not None and replays % every == 0:
            return True
        return interval_s is not None and time.monotonic() - self._offered >= interval_s

    def offer(self) -> None:
        """Copy the weights as they are now, to be published next.

        Raises:
            Exception: what an earlier publish failed with.
        """
        self._offered = time.monotonic()
        if not self._leaves_out:
            self.flush()
        with self._changed:
            self._raise_error()
            snapshot, self._next = self._next or self._free.pop(), None
        snapshot.take(self._modules)
        with self._changed:
            self._next = snapshot
            self._changed.notify_all()
        if self._thread.is_idle():
            self._publish_next()

    @property
    def is_settled(self) -> bool:
        """Whether all that was offered is published."""
        with self._changed:
            return self._error is None and self._is_done()

    def follow(self, version: int) -> None:
        """Take note of a version that rank 0 published."""
        if version > self.version:
            self._announce(version)

    def flush(self) -> None:
        """Wait until what was offered is published.

        Raises:
            Exception: what a publish failed with.
            DeadlineError: it takes longer than two minutes.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_done, _FLUSH_TIMEOUT_S):
                raise DeadlineError(f"model: publishing takes longer than {_FLUSH_TIMEOUT_S:g} s")
            self._raise_error()

    def check(self) -> None:
        """Raise what a publish failed with, if one did."""
        with self._changed:
            self._raise_error()

    def _is_done(self) -> bool:
        return self._error is not None or (self._next is None and not self._is_busy)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._next is not None)
                if self._is_closing:
                    return
            try:
                self._publish_next()
            except Exception as error:  # noqa: BLE001 - raised to the loop
                with self._changed:
                    self._error = error
                    self._changed.notify_all()

    def _publish_next(self) -> None:
        with self._changed:
            snapshot, self._next = self._next, None
            self._is_busy = snapshot is not None
        if snapshot is None:
            return
        try:
            self._publish(snapshot)
        finally:
            with self._changed:
                self._free.append(snapshot)
                self._is_busy = False
                self._changed.notify_all()

    def _publish(self, snapshot: _Snapshot) -> None:
        started = time.perf_counter()
        weights = snapshot.arrays()
        versions = [model.publish(weights[name]) for name, model in self._models.items()]
        metrics.record("trainer/publish_s", time.perf_counter() - started)
        metrics.record("trainer/policy_version", versions[0], kind="last")
        self._announce(versions[0])

    def _announce(self, version: int) -> None:
        self.version = version
        for buffer in self._listeners:
            buffer.set_policy_version(version)


class _Snapshot:
    """A copy of all modules' weights, into the same memory each time.

    Args:
        stream: CUDA stream on which the copies leave the device; None on the CPU.
    """

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._copies: dict[str, dict[str, Tensor]] = {}
        self._stream = stream

    def take(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the weights where they are: on a GPU that is queued behind the step."""
        for name, module in modules.items():
            live = whole(module.state_dict())
            copies = self._copies.get(name, {})
            # The same memory each time, unless the module has changed.
            if [*map(_kind, copies.values())] != [*map(_kind, live.values())]:
                copies = self._copies[name] = {k: torch.empty_like(t) for k, t in live.items()}
            with torch.no_grad():
                torch._foreach_copy_(list(copies.values()), list(live.values()))
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def arrays(self) -> dict[str, dict[str, Any]]:
        """Return module → name → array; from a GPU on the stream, which is waited for."""
        with torch.cuda.stream(self._stream):
            return {
                name: {key: copy.cpu().numpy() for key, copy in copies.items()}
                for name, copies in self._copies.items()
            }


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device
