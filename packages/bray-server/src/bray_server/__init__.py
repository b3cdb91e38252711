"""Servers over HTTP and TCP for services with sessions or without, and clients."""

from bray_server.clients.async_client import AsyncClient
from bray_server.clients.client import Client
from bray_server.clients.in_process import InProcessClient
from bray_server.hosting.server import Server
from bray_server.hosting.server_thread import ServerThread, serve
from bray_server.limits.limits import Limits
from bray_server.sessions.page_streams import PageStream
from bray_server.sessions.pages import PageReply, PageRequest
from bray_server.wire.requests import Reply, Request
from bray_server.wire.tls import Tls

__all__ = [
    "AsyncClient",
    "Client",
    "InProcessClient",
    "Limits",
    "PageReply",
    "PageRequest",
    "PageStream",
    "Reply",
    "Request",
    "Server",
    "ServerThread",
    "Tls",
    "serve",
]
