"""HTTP and TCP hosting of stateful and stateless services, sessions and clients."""

from bray_server.async_client import AsyncClient
from bray_server.client import Client, Reply, Request
from bray_server.in_process import InProcessClient
from bray_server.limits import Limits
from bray_server.pages import PageReply, PageRequest
from bray_server.server import Server
from bray_server.server_thread import ServerThread, serve
from bray_server.tls import Tls

__all__ = [
    "AsyncClient",
    "Client",
    "InProcessClient",
    "Limits",
    "PageReply",
    "PageRequest",
    "Reply",
    "Request",
    "Server",
    "ServerThread",
    "Tls",
    "serve",
]
