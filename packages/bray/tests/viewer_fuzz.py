"""Hostile requests to the viewer, made by its own grammar: what a page asks, with one thing wrong.

Each is small. `exchange` sends many over few connections and reads every answer.
"""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

NUMBERS = (
    "0", "1", "-1", "2", "50", "1e3", "1e309", "-1e309", "nan", "NaN", "inf", "-inf", "1_0", "0x10",
    "9" * 15, "9" * 16, "9" * 400, "1e-320", "0.5", "0.9999", "1.0000001", "", " ", "+1", "1.",
    "%31",
    "%D9%A3", "%00", "1%0d%0a", "--1", "1/2", "true", "null", "[]", "1,2", "5e-324", "4.9", "1e15",
)  # fmt: skip
NAMES = (
    "one", "two", "one/", "two ", "..", ".", "%2e%2e", "..%2f..%2fetc", "%00", "one%00", "%ff",
    "%c3%28",
    "%ed%a0%80", "a" * 300, "%F0%9F%98%80" * 20, "<img src=x>", "%0d%0aX:%20y", "*", "{trial}", "~",
    "con", "one%2flaunches", "%25", "%u0041", "one;two", "one,two", "one=two", "%e2%80%ae", "'",
    '%22',
    "launches", "-", "0", "null", "undefined", "__proto__", "config.yaml", "%5c..%5c..",
)  # fmt: skip
WORDS = (
    "frames", "steps", "seconds", "policy_version", "wall_time_s", "INFO", "ERROR", "DEBUG", "info",
    "observation", "webp", "gif", "mp4", "os:system", "a/b", "actor/episode_return", "trainer/loss",
    "trainer/loss%7Ba=b%7D", "ppo", "dqn", "alphazero", "tic-tac-toe", "cartpole", "CartPole-v1",
)  # fmt: skip
PARAMETERS = (
    "trial", "metric", "x", "smoothing", "points", "from", "to", "level", "limit", "before",
    "after",
    "start", "number", "render", "format", "frames_per_s", "algorithm", "task", "template",
    "file", "",
)  # fmt: skip
PATHS = (
    "/", "/login", "/static/app.js", "/static/{name}", "/api/project", "/api/trials",
    "/api/metrics",
    "/api/curves", "/api/trials/{trial}", "/api/trials/{trial}/loop",
    "/api/trials/{trial}/versions",
    "/api/trials/{trial}/league", "/api/trials/{trial}/ratings", "/api/trials/{trial}/log",
    "/api/trials/{trial}/episodes", "/api/trials/{trial}/episodes/{episode}",
    "/api/trials/{trial}/episodes/{episode}/steps/{number}",
    "/api/trials/{trial}/episodes/{episode}/steps/{number}/picture",
    "/api/trials/{trial}/episodes/{episode}/video", "/api/builder", "/api/builder/open",
    "/api/{name}", "/{name}", "/api/trials/{trial}/{name}",
)  # fmt: skip
PARTS = (
    "trainers.policy", "sources.source", "buffers.policy", "models.policy", "agents.policy", "",
    "trainers.", "goal.x", "actors.source",
)  # fmt: skip
ACTS = ("check", "save", "stop", "start", "edit", "part", "serve")
PIECES = (
    "algorithm: ppo\n", "seed: 1\n", "trainer:\n  gamma: 0.9\n",
    "source: {environment: CartPole-v1}\n",
    "&a [*a]\n", "a: &a [1, 2]\n", "b: [*a, *a]\n", "[" * 90, "{" * 90, "- " * 90, "? ", ": ",
    "!!int x\n",
    "seed: 2001-99-99\n", "seed: 0x" + "f" * 200 + "\n", "<<: {}\n", "\t", "\u2028", "'", '"',
    "|\n",
    "%YAML 9\n", "---\n", "rate: 1e999\n", "\\ud800", "\0", "#\n", "k" * 200 + ": 1\n", "goal:\n",
    "~\n",
)  # fmt: skip
HEADERS = (
    "Origin: null", "Origin: http://[", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site",
    "If-None-Match: *", "Cookie: bray-view=\xfc; ;=;", "Authorization: Bearer \xff",
    "Accept-Encoding: gzip",
    "Content-Type: text/plain; charset=nonsense", "Content-Type: multipart/form-data; boundary=x",
    "Range: bytes=0-", "Bray-Page: 1", "Bray-Page: 2", "Expect: nothing", "X: " + "y" * 2000,
)  # fmt: skip


class Requests:
    """Makes requests, the same ones from the same seed.

    Args:
        seed: of the choices.
        episode: the name of one that there is.
    """

    def __init__(self, seed: int, episode: str) -> None:
        self._random = random.Random(seed)
        self._episodes = (episode, episode, *NAMES)

    def make(self) -> bytes:
        """Return one request."""
        share = self._random.random()
        if share < 0.02:
            return self._post()
        method = "HEAD" if share < 0.04 else "DELETE" if share < 0.045 else "GET"
        return self._request(method, f"{self._path()}{self._query()}", b"")

    def _choose(self, among: Sequence[str]) -> str:
        return self._random.choice(among)

    def _value(self) -> str:
        return self._choose(self._random.choice((NUMBERS, NAMES, WORDS, ("one", "two"))))

    def _path(self) -> str:
        names = {"trial": ("one", "one", "two", *NAMES), "episode": self._episodes}
        names |= {"number": ("0", "1", "2", *NUMBERS), "name": NAMES}
        chosen = {what: self._choose(among).replace("/", "%2f") for what, among in names.items()}
        if self._random.random() < 0.7:
            chosen["trial"] = "one"
        return self._choose(PATHS).format(**chosen)

    def _query(self) -> str:
        number = self._random.choice((0, 0, 1, 1, 2, 3, 12))
        pairs = [f"{self._choose(PARAMETERS)}={self._value()}" for _ in range(number)]
        return "?" + "&".join(pairs) if pairs else ""

    def _text(self) -> str:
        return "".join(self._choose(PIECES) for _ in range(self._random.randrange(6)))

    def _edit(self) -> dict[str, object]:
        names = ("part", "from", "to")
        return {
            "act": self._choose(("add", "remove", "rename", "connect", "disconnect", "set", "x")),
            "kind": self._choose(("source", "trainer", "buffer", "")),
            **{name: self._choose(PARTS) for name in names},
            "name": self._value(),
            "settings": self._random.choice(({}, {"kind": 3}, {"algorithm": "dqn"}, None)),
            "path": self._random.choice((["trainers", "policy", "model"], [], [3], None)),
        }

    def _post(self) -> bytes:
        content: dict[str, object] = {
            "text": self._text(),
            "file": self._choose((*NAMES, "new.yaml", ".yaml", "a" * 100 + ".yaml")),
            "trial": self._value(),
            "part": self._choose(PARTS),
            "edit": self._edit(),
            "stamp": self._random.choice((None, "x", 3)),
            "settings": self._random.choice(
                (None, {}, [], {"algorithm": "ppo"}, {"a": [1, {"b": None}]})
            ),
        }
        for name in list(content):
            if self._random.random() < 0.2:
                content[name] = self._random.choice((None, 3, [], {}, "x", float("inf")))
        body = json.dumps(content)
        if self._random.random() < 0.3:
            at = self._random.randrange(len(body))
            body = (
                body[:at] + self._choose(("", "[" * 3000, '"', "\\u", "9" * 5000)) + body[at + 1 :]
            )
        path = f"/api/builder/{self._choose(ACTS)}" if self._random.random() < 0.9 else "/login"
        return self._request("POST", path, body.encode(), "Bray-Page: 1")

    def _request(self, method: str, path: str, body: bytes, *headers: str) -> bytes:
        path = quote(path, safe="/?&=%:+,;~*'()!$@[]")
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
        if self._random.random() < 0.2:
            lines.append(self._choose(HEADERS))
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        return head.encode("latin-1") + body


def exchange(address: str, requests: Sequence[bytes]) -> list[int]:
    """Send requests over one connection, all at once; return the status of each answer."""
    where = urlsplit(address)
    found: list[int] = []
    with socket.create_connection((where.hostname, where.port or 0), 60) as connection:
        connection.sendall(b"".join(requests))
        reader = connection.makefile("rb")
        for request in requests:
            line = reader.readline()
            if not line:  # closed, as after a request that is none
                break
            found.append(int(line.split()[1]))
            head = b"".join(iter(reader.readline, b"\r\n"))
            size = re.search(rb"(?i)content-length: (\d+)", head)
            if size and not request.startswith(b"HEAD") and found[-1] != 304:
                reader.read(int(size[1]))
    return found
