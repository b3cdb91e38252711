"""Joining a Ray cluster, or starting one on this machine, and leaving it."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from typing import Any

from bray_core.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    MissingExtraError,
    NotFoundError,
)

try:
    import ray
    import ray.util
except ImportError:
    raise MissingExtraError("bray_core.remote", "bray-core", "ray") from None

from ray._private import ray_constants

from bray_core.process.machine import own_threads_of_children
from bray_core.remote import orphans, ray_secrets
from bray_core.remote.calls import first_line
from bray_core.remote.restart_limit import RestartLimit
from bray_core.remote.signals import keep_sigterm_handler, release_sigterm

logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 256 * 1024 * 1024
_CONNECT_TIMEOUT_S = 30.0
_OLDEST_RAY = (2, 59)
"""Oldest version whose clusters ask for a token by default."""
_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that, at 0, makes Ray's daemons listen on loopback alone."""
_LOOPBACK_GIVEN = not ray_constants.ENABLE_RAY_CLUSTER
"""Whether the environment sets that variable to 0, as in the workers of a local cluster."""
_started_here = False
_is_own_cluster = False
"""Whether this process started the cluster, so that all nodes are on this machine."""
_limit = RestartLimit()
"""Restart limit of the pools that this process makes."""


def init_ray(
    address: str | None = None,
    num_cpus: int | None = None,
    restarts: RestartLimit | None = None,
    namespace: str = "bray",
) -> bool:
    """Connect to a Ray cluster, or start one on this machine; a second call is harmless.

    Args:
        address: Address of a running cluster, `host:port` or `auto`; None starts one here.
        num_cpus: CPUs of a cluster started here; None counts the machine's. Workers of bray claim
            few, so a small machine is enough.
        restarts: How often a worker of this process's pools may die; None takes the default.
        namespace: Ray namespace in which the names of pools are unique, and looked up.

    Returns:
        Whether this call connected or started: then `shutdown_ray` undoes it.

    Raises:
        ConfigError: `address` is not valid, or the installed Ray is too old.
        NotFoundError: No cluster answers at the address, or it wants another token.
        DeadlineError: The cluster does not let us in within half a minute, or does not start.
    """
    global _started_here, _is_own_cluster, _limit
    _check_version(ray.__version__)
    _limit = restarts or RestartLimit()
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {
        "namespace": namespace,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address is None:
        options |= {
            "num_cpus": num_cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,  # it shares /dev/shm with bray's buffers
        }
    _started_here, _is_own_cluster = True, address is None
    try:
        with keep_sigterm_handler(), own_threads_of_children():
            if address is None:
                orphans.adopt_orphans()
                _start(options)
            else:
                _connect(address, options)
    except BaseException:  # also Ctrl-C half-way: what was started must not stay
        shutdown_ray()
        raise
    return True


def shutdown_ray() -> None:
    """Undo `init_ray`: disconnect, and stop a cluster that it started."""
    global _started_here, _is_own_cluster
    if not _started_here:
        return
    _started_here = _is_own_cluster = False
    ray.shutdown()
    _stay_on_loopback(_LOOPBACK_GIVEN)
    release_sigterm()
    orphans.end_children(_is_ray)


def require_ray() -> None:
    """Refuse to go on without Ray, which would otherwise start a cluster of its own accord.

    Raises:
        ClosedError: Ray is not running.
    """
    if not ray.is_initialized():
        raise ClosedError("ray: not running: call bray.init(…, runtime='ray') or init_ray first")


def default_restart_limit() -> RestartLimit:
    """Return how often a worker of this process's pools may die, as given to `init_ray`."""
    return _limit


def this_host() -> str:
    """Return the address at which workers on any node of the cluster reach this process."""
    return "127.0.0.1" if _is_own_cluster else str(ray.util.get_node_ip_address())


def this_node() -> str:
    """Return Ray's id of the node that this process runs on.

    Raises:
        ClosedError: Ray is not running.
    """
    require_ray()
    return str(ray.get_runtime_context().get_node_id())


def _check_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < _OLDEST_RAY:
        wanted = ".".join(map(str, _OLDEST_RAY))
        raise ConfigError(
            f"ray: expected version {wanted} or later, whose clusters ask for a token, got "
            f"{version}: install bray-core[ray] anew"
        )


def _start(options: dict[str, Any]) -> None:
    ray_secrets.secure_token(create=True)
    _stay_on_loopback()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it tells its makers of the cluster
    folder = ray_secrets.session_folder()
    try:
        ray.init(address="local", **options, **({"_temp_dir": folder} if folder else {}))
    except Exception as error:
        if type(error) is not Exception:  # Ray's own, when one of its processes is not up in time
            raise
        raise DeadlineError(
            f"ray: no cluster started on this machine, it may be too busy: {first_line(error)}"
        ) from error
    if not _is_loopback(host := str(ray.util.get_node_ip_address())):
        logger.warning(
            "ray %s listens at %s, not on loopback: its token alone keeps others out",
            ray.__version__,
            host,
        )


def _connect(address: str, options: dict[str, Any]) -> None:
    """Connect to a running cluster within a deadline; `ray.init` itself tries for ever."""
    failure: list[BaseException] = []
    done = threading.Event()

    def connect() -> None:
        try:
            ray.init(address=address, **options)
        except BaseException as error:  # noqa: BLE001  the thread's edge: raised below
            failure.append(error)
        done.set()

    _check_reachable(address)
    ray_secrets.secure_token(create=False)
    threading.Thread(target=connect, name="ray-connect", daemon=True).start()
    if not done.wait(_CONNECT_TIMEOUT_S):
        raise DeadlineError(
            f"address: no connection to the Ray cluster at {address!r} within "
            f"{_CONNECT_TIMEOUT_S:g} s: is it Ray's port, and is its token in ~/.ray/auth_token?"
        )
    if failure:
        raise NotFoundError(
            f"address: no Ray cluster answers at {address!r}, or its token is another than that "
            f"of RAY_AUTH_TOKEN or ~/.ray/auth_token: {first_line(failure[0])}"
        ) from failure[0]
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        logger.warning(
            "the Ray cluster at %s asks for no token: whoever reaches it runs code there", address
        )


def _check_reachable(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise ConfigError(f"address: expected host:port or auto, got {address!r}")
    try:
        _try_to_connect(host, int(port))
    except OSError as error:
        raise NotFoundError(
            f"address: nothing listens at {address!r} ({error.strerror or error}): "
            "start a cluster with `ray start --head`, or leave the address out"
        ) from error

    if host.strip("[]") in (
        "localhost",
        "127.0.0.1",
        "::1",
    ):  # Ray goes to the machine's other address, where ours do not listen
        try:
            _try_to_connect(str(ray.util.get_node_ip_address()), int(port))
        except OSError:
            _stay_on_loopback()


def _try_to_connect(host: str, port: int) -> None:
    socket.create_connection((host.strip("[]"), port), 5.0).close()


def _stay_on_loopback(stays: bool = True) -> None:
    """Let Ray's daemons and workers listen on loopback alone, or no longer.

    Ray turns `_node_ip_address="127.0.0.1"` into the address that others reach, unless it believes
    that no other machine can join; then its daemons and workers listen on loopback alone.
    """
    if stays:
        os.environ[_ONE_MACHINE] = "0"  # for workers, and what they start
    else:
        os.environ.pop(_ONE_MACHINE, None)
    ray_constants.ENABLE_RAY_CLUSTER = not stays


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_ray(command: str) -> bool:
    return command.startswith("ray::") or "/site-packages/ray/" in command
