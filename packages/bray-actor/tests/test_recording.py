from __future__ import annotations

import asyncio
import math
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from bray_actor import Actor, Recorder, read_episode, recording
from bray_actor.recording import LongEpisodeError
from bray_core import codec, metrics
from bray_core.errors import ConfigError, ServiceError, SpecError
from bray_server import Client, InProcessClient, ServerThread


class Echo(Actor):
    def __init__(self, session: str) -> None:
        self.aborted = ""

    async def tick(self, body: bytes) -> bytes:
        if body == b"fail":
            raise ValueError("failed")
        return body.upper()


def play(client: Client | InProcessClient, session: str, *bodies: bytes) -> None:
    client.start(session, b"begin")
    for body in bodies:
        client.tick(session, body)
    client.end(session, b"over")


def test_one_in_n_episodes_is_one_file_of_all_that_was_said(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "episodes", every=3)
    server = ServerThread(recorder.record(Echo))
    with Client(server.addresses[0]) as client:
        for number in range(7):
            play(client, f"game/../../{number}", b"a", b"b")
    server.close()
    recorder.close()
    files = recorder.files()
    assert len(files) == 3
    assert sorted(tmp_path.rglob("*.*")) == files, "no session's name is a path"
    episodes = [read_episode(path) for path in files]
    assert [e.session for e in episodes] == [f"game/../../{number}" for number in (0, 3, 6)]
    (episode, *_) = episodes
    said = [(r.kind, r.body, r.reply) for r in episode.requests]
    assert said == [
        ("start", b"begin", b""),
        ("tick", b"a", b"A"),
        ("tick", b"b", b"B"),
        ("end", b"over", b""),
    ]
    assert episode.outcome == "end"
    assert episode.is_whole
    times = [r.at_s for r in episode.requests]
    assert times == sorted(times)


def test_a_lost_session_and_a_failed_tick_are_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, every=1)
    server = ServerThread(recorder.record(Echo))
    with Client(server.addresses[0]) as client:
        client.start("s")
        with pytest.raises(Exception, match="failed"):
            client.tick("s", b"fail")
    server.close()
    recorder.close()
    (path,) = recorder.files()
    episode = read_episode(path)
    assert episode.outcome == "disconnected"
    assert [(r.kind, r.reply) for r in episode.requests] == [("start", b""), ("tick", None)]


async def test_a_huge_episode_is_cut_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MAX_EPISODE_BYTES", 10_000)
    recorder = Recorder(tmp_path, every=1)
    actor: Any = recorder.record(Echo)("s")
    for _ in range(100):
        await actor.tick(bytes(1000))
    await actor.end(b"")
    recorder.close()
    episode = read_episode(recorder.files()[0])
    assert not episode.is_whole
    assert 1 <= len(episode.requests) < 10


async def test_old_files_go(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, every=1, max_files=2)
    for number in range(5):
        actor: Any = recorder.record(Echo)(str(number))
        await actor.end(b"")
        while recorder._waiting:
            os.sched_yield()
    recorder.close()
    assert [read_episode(path).session for path in recorder.files()] == ["3", "4"]


async def test_a_large_folder_is_listed_once_in_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []
    names = recording.os.listdir
    monkeypatch.setattr(recording.os, "listdir", lambda folder: listed.append(1) or names(folder))
    recorder = Recorder(tmp_path, max_files=500, max_waiting=20)
    for number in range(510):  # of an earlier time
        (tmp_path / f"20260101T000000-old-{number:06d}.episode").touch()
    for number in range(13):
        await recorder.record(Echo)(str(number)).end(b"")
    recorder.close()
    assert len(listed) == 3  # after 6 and 12 files, and at the end
    assert len(recorder.files()) == 500
    assert {read_episode(path).session for path in recorder.files()[-13:]} == set(
        map(str, range(13))
    )


async def test_recorders_of_one_folder_keep_each_others_files(tmp_path: Path) -> None:
    recorders = [Recorder(tmp_path, every=1) for _ in range(2)]
    for name, recorder in zip("ab", recorders, strict=True):
        actor: Any = recorder.record(Echo)(name)
        await actor.end(b"")
        recorder.close()
    assert {read_episode(path).session for path in recorders[0].files()} == {"a", "b"}


async def test_what_cannot_be_written_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = metrics.snapshot().get("actor/recordings_lost", 0.0)
    recorder = Recorder(tmp_path / "gone", every=1)
    (tmp_path / "gone").rmdir()
    for number in range(200):
        actor: Any = recorder.record(Echo)(f"{number}")
        assert await actor.tick(b"a") == b"A"
        await actor.end(b"")
    recorder.close()
    assert metrics.snapshot()["actor/recordings_lost"] - before == 200
    assert 0 < caplog.text.count("an episode is not recorded") < 60, "sessions fill no log"


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every: expected 1 or more, got 0"):
        Recorder(tmp_path, every=0)
    with pytest.raises(ConfigError, match="max_files: expected 1 or more, got 0"):
        Recorder(tmp_path, every=1, max_files=0)
    with pytest.raises(ConfigError, match="max_waiting: expected 1 or more, got 0"):
        Recorder(tmp_path, every=1, max_waiting=0)
    other = tmp_path / "x.episode"
    other.write_bytes(b"something")
    with pytest.raises(ConfigError, match=r"folder: cannot write into .*x\.episode: "):
        Recorder(other)
    with pytest.raises(SpecError, match="expected an episode of bray"):
        read_episode(other)


async def test_a_damaged_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, every=1)
    actor: Any = recorder.record(Echo)("s")
    await actor.tick(b"abc")
    await actor.end(b"")
    recorder.close()
    (path,) = recorder.files()
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(SpecError):
            read_episode(path)


def test_a_file_that_stands_for_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    def write(**change: Any) -> Path:
        tree = {"session": "s", "began_s": 1.0, "outcome": "end", "is_whole": True, "requests": []}
        path = tmp_path / "a.episode"
        path.write_bytes(b"BRAYEP01" + zlib.compress(codec.encode(tree | change), 9))
        return path

    many = [["tick", 0.0, b"", None]] * 20
    assert len(read_episode(write(requests=many), max_requests=20).requests) == 20
    with pytest.raises(LongEpisodeError, match="expected 19 requests at most"):
        read_episode(write(requests=many), max_requests=19)
    with pytest.raises(LongEpisodeError, match="expected 1000 bytes of requests at most"):
        read_episode(write(requests=[["tick", 0.0, bytes(5000), None]]), max_bytes=1000)
    for wrong in ({"requests": [["tock", 0.0, b"", b""]]}, {"session": 3}, {"began_s": math.inf}):
        with pytest.raises(SpecError, match="a damaged episode"):
            read_episode(write(**wrong))
    os.mkfifo(tmp_path / "pipe.episode")
    with pytest.raises(SpecError, match="expected a regular file, got a named pipe"):
        read_episode(tmp_path / "pipe.episode")


async def test_only_so_many_requests_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_REQUESTS", 3)
    recorder = Recorder(tmp_path, every=1)
    actor = recorder.record(Echo)("s")
    await actor.start(b"")
    for _ in range(5):
        await actor.tick(b"")
    await actor.end(b"")
    recorder.close()
    episode = read_episode(recorder.files()[0])
    assert (len(episode.requests), episode.is_whole) == (3, False)


def test_a_share_is_drawn_by_the_sessions_name(tmp_path: Path) -> None:
    names = [f"session {number}" for number in range(1000)]
    for share in (0.0, 0.01, 0.3, 1.0):
        drawn = [name for name in names if recording.is_drawn(name, share)]
        assert len(drawn) == pytest.approx(1000 * share, abs=50)
        assert drawn == [name for name in names if recording.is_drawn(name, share)]
    recorder = Recorder(tmp_path, share=0.3, max_waiting=20)
    with InProcessClient(recorder.record(Echo)) as client:
        for name in names[:20]:
            play(client, name, b"a")
    recorder.close()
    found = [read_episode(path).session for path in recorder.files()]
    assert found == [name for name in names[:20] if recording.is_drawn(name, 0.3)]
    assert 2 <= len(found) <= 12
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match=f"share: expected 0 to 1, got {bad}"):
            Recorder(tmp_path, share=bad)


async def test_sessions_share_a_bounded_memory(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, max_memory_bytes=1000)
    long, short = (recorder.record(Echo)(name) for name in ("long", "short"))
    await long.tick(b"a" * 400)  # 864 bytes with the reply
    await short.tick(b"b" * 400)
    await long.end(b"")
    await short.end(b"")
    recorder.close()
    found = [read_episode(path) for path in recorder.files()]
    assert [(one.session, len(one.requests), one.is_whole) for one in found] == [
        ("long", 2, True),
        ("short", 0, False),
    ]
    again = Recorder(tmp_path / "again", max_memory_bytes=1000)
    for name in ("one", "two"):
        actor = again.record(Echo)(name)
        await actor.tick(b"a" * 400)
        await actor.end(b"")
        for _ in range(1000):  # until it is on disk, its memory is taken
            if len(again.files()) == 1 + (name == "two"):
                break
            await asyncio.sleep(0.01)
    again.close()
    assert all(read_episode(path).is_whole for path in again.files())


async def test_a_start_that_is_refused_takes_no_memory(tmp_path: Path) -> None:
    class Choosy(Echo):
        async def start(self, body: bytes) -> bytes:
            if body:
                raise ServiceError("bad_request", "not so")
            return body

    recorder = Recorder(tmp_path, max_memory_bytes=1000)
    make = recorder.record(Choosy)
    for number in range(10):
        with pytest.raises(ServiceError):
            await make(f"refused-{number}").start(b"a" * 400)
    actor = make("played")
    await actor.start(b"")
    await actor.tick(b"a" * 200)
    await actor.end(b"")
    recorder.close()
    (episode,) = (read_episode(path) for path in recorder.files())
    assert (episode.session, len(episode.requests), episode.is_whole) == ("played", 3, True)
