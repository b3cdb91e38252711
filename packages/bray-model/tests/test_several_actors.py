"""Which policy of several answers a session."""

from __future__ import annotations

import asyncio

import pytest

from bray_core.codec import encode
from bray_core.errors import ServiceError
from bray_model.serving.several_actors import SeveralActors


class Named:
    """Answers everything with its policy's name and its session's."""

    def __init__(self, name: str, session: str) -> None:
        self._reply = f"{name} {session}".encode()

    async def start(self, body: bytes) -> bytes:
        return self._reply

    async def tick(self, body: bytes) -> bytes:
        return self._reply

    async def end(self, body: bytes) -> bytes:
        return self._reply

    async def abort(self, reason: str) -> None: ...


ACTORS = SeveralActors(
    {
        "hunter": lambda session: Named("hunter", session),
        "runner": lambda session: Named("runner", session),
    },
    lambda: {"hunter": ["adversary_*", "boss"], "runner": ["agent_*"]},
)


def started(body: bytes) -> bytes:
    async def play() -> bytes:
        actor = ACTORS("s1")
        await actor.start(body)
        return await actor.tick(b"")

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("start", "reply"),
    [
        ({"policy": "runner"}, b"runner s1"),
        ({"agent": "adversary_0"}, b"hunter s1"),
        ({"agent": "boss", "match": "m1"}, b"hunter s1"),
        ({"agent": "agent_3"}, b"runner s1"),
        ({"agent": "agent_3", "policy": "hunter"}, b"hunter s1"),
    ],
)
def test_a_session_is_answered_by_the_policy_that_it_names(start, reply):
    assert started(encode(start)) == reply


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", r"expected \{\"policy\": one of them\}"),
        (
            encode({"policy": "hntr"}),
            r"served, \['hunter', 'runner'\].*'hntr'",
        ),
        (encode({"agent": "dog"}), r"adversary_\*, boss, agent_\*.*got agent 'dog'"),
        (encode({"policy": ["hunter"]}), "got policy"),
        (encode([1]), "expected a mapping, got list"),
        (b"\xff\xff", "body: "),
    ],
)
def test_a_session_that_names_none_is_refused(body, words):
    with pytest.raises(ServiceError, match=words) as raised:
        started(body)
    assert raised.value.code == "bad_request"


def test_a_session_without_a_start_is_freed():
    asyncio.run(ACTORS("s1").abort("gone"))
