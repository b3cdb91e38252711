"""A simulator that knows nothing of bray: standard library only, calling an actor over HTTP.

Any language with an HTTP client can do the same; bodies are whatever both sides agree on, here
JSON. The actor at the other end is in this file too, so that the example runs by itself.
"""

from __future__ import annotations

import json
import urllib.request

from bray_actor import Actor
from bray_server import ServerThread


class Thermostat(Actor):
    """Heats while it is too cold."""

    async def tick(self, body: bytes) -> bytes:
        """Answer a temperature with whether to heat."""
        return json.dumps({"heat": json.loads(body)["celsius"] < 20}).encode()


def step(address: str, session: str, kind: str, message: dict[str, float]) -> bytes:
    """Send one request as any HTTP client would."""
    headers = {"session": session, "step_kind": kind}
    body = json.dumps(message).encode()
    request = urllib.request.Request(f"{address}/step", body, headers, method="POST")
    with urllib.request.urlopen(request) as response:
        reply: bytes = response.read()
    return reply


def main() -> None:
    """Simulate a room for an hour."""
    server = ServerThread(lambda session: Thermostat(), tcp_port=None, http_port=0)
    (address,) = server.addresses
    celsius = 15.0
    step(address, "room", "start", {})
    for _ in range(60):
        heat = json.loads(step(address, "room", "tick", {"celsius": celsius}))["heat"]
        celsius += 0.3 if heat else -0.2
    step(address, "room", "end", {})
    server.close()
    print(f"after an hour the room has {celsius:.1f} °C")
    assert 19 < celsius < 21


if __name__ == "__main__":
    main()
