"""Frames that every implementation of the protocol must refuse, against the server's parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bray_server.wire.frames import FrameParser, Kind, pack

REFUSED = json.loads((Path(__file__).parent / "vectors" / "frames_refused.json").read_text())


def parser() -> FrameParser:
    return FrameParser(REFUSED["max_body_bytes"], REFUSED["max_session_bytes"])


@pytest.mark.parametrize("vector", REFUSED["frames"], ids=lambda v: v["name"])
@pytest.mark.parametrize("in_front", [b"", pack(Kind.PING, 1, "", b"x")], ids=["alone", "second"])
def test_it_is_refused_after_what_is_good(vector: dict[str, Any], in_front: bytes) -> None:
    made = parser()
    frames = made.feed(in_front + bytes.fromhex(vector["hex"]))
    assert len(frames) == bool(in_front)
    assert made.error is not None
    assert (made.error.code, made.error.request_id) == (vector["error"], vector["request_id"])
    assert made.feed(in_front) == [], "nothing is read behind it"


@pytest.mark.parametrize(
    "vector",
    [v for v in REFUSED["frames"] if len(v["hex"]) == 32],
    ids=lambda v: v["name"],
)
def test_it_is_not_refused_before_its_header_is_whole(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for cut in range(len(data)):
        made = parser()
        assert made.feed(data[:cut]) == []
        assert made.error is None
        made.feed(data[cut:])
        assert made.error is not None
