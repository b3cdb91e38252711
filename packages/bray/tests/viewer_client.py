"""Requests to the viewer as they are: no client mends them."""

from __future__ import annotations

import gzip
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from bray.viewer.server import Viewer


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.body = response.read()
        self.num_bytes = len(self.body)
        if response.headers.get("Content-Encoding") == "gzip":
            self.body = gzip.decompress(self.body)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(viewer: Viewer, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    """Send a request as it is: no client mends its path."""
    connection = http.client.HTTPConnection(urlsplit(viewer.address).netloc, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode())
        return Answer(connection.getresponse())
    finally:
        connection.close()
