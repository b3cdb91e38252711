"""Trials that a crash, another program or an enemy wrote: faults are told, none ends a reader."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from bray_core.errors import CodecError
from bray_core.files.json_file import finite, read_object
from bray_core.metrics.axes import Axes
from bray_core.metrics.json_lines import (
    COUNTS,
    FILE,
    JsonLinesSink,
    curve,
    last_axes,
    newest_rows,
    tail,
    whole_lines,
)
from bray_core.metrics.recent_return import recent_return
from bray_core.trials.launch_record import RECORD, LaunchRecord
from bray_core.trials.trial import Trial

GOOD = b'{"frames": 5, "steps": 2, "policy_version": 1, "seconds": 3, "values": {"a": 1.5}}'
BAD_LINES = [
    b"", b"[]", b"3", b"null", b'{"frames": 5, "val', b'{"values": {"a": 1}}', b"\xff\xfe",
    b'{"frames": 5, "values": {"a": NaN}}', b'{"frames": NaN, "values": {"a": 1}}',
    b'{"frames": 5, "values": {"a": 1e999}}', b'{"frames": 5, "values": {"a": %s}}' % (b"9" * 400),
    b'{"frames": ' + b"9" * 5000 + b', "values": {}}', b'{"frames": 5, "values": {"a": "x"}}',
    b'{"frames": 5, "values": [1]}', b'{"frames": "5", "values": {}}',
    b'{"frames": 5, "values": {"a": ' + b"[" * 9000 + b"]" * 9000 + b"}}",
    b'{"frames": 5, "values": {"\xff": 1}}', b'{"frames": 5, "values": {"\\ud800": 1}}',
    b'{"frames": 5, "values": {}, "counts": 3}',
]  # fmt: skip


def launch(trial: Path, name: str = "1", *lines: bytes) -> Path:
    folder = trial / "launches" / name
    folder.mkdir(parents=True)
    if lines:
        (folder / FILE).write_bytes(b"\n".join([*lines, b""]))
    return folder


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_line_that_is_none_hides_no_other(tmp_path: Path, bad: bytes) -> None:
    folder = launch(tmp_path, "1", GOOD, bad, GOOD, bad)
    assert curve(tmp_path, "a") == ([5.0, 5.0], [1.5, 1.5])
    assert [row.frames for row in tail(folder)] == [5.0, 5.0]
    assert last_axes(tmp_path).policy_version == 1
    assert Trial(tmp_path).metrics() == {"a": 1.5, "frames": 5}
    assert recent_return(tmp_path) is None


def test_a_line_without_an_end_is_met_in_pieces(tmp_path: Path) -> None:
    folder = launch(tmp_path, "1", GOOD, b"x" * 9_000_000, GOOD)
    assert len(list(newest_rows(folder))) == 2
    assert len(curve(tmp_path, "a")[0]) == 2
    with (folder / FILE).open("rb") as file:
        blocks = list(whole_lines(file, 0))
    assert max(len(block) for block, _ in blocks) < 5_000_000
    assert blocks[-1][1] == (folder / FILE).stat().st_size
    long = launch(tmp_path, "2", b"x" * 600_000)
    assert (tail(long), list(newest_rows(long))) == ([], [])


def test_rows_come_from_the_end_and_across_blocks(tmp_path: Path) -> None:
    lines = [json.dumps({"frames": n, "values": {"a": n, "b": 1}}) for n in range(20_000)]
    folder = launch(tmp_path, "1", *(line.encode() for line in lines))
    assert (folder / FILE).stat().st_size > 3 * 256 * 1024
    assert [row.frames for row in newest_rows(folder)] == list(reversed(range(20_000)))
    with (folder / FILE).open("rb") as file:
        found = b"\n".join(block for block, _ in whole_lines(file, 0))
    assert found.decode().split("\n") == lines


def record(folder: Path) -> dict[str, Any]:
    return json.loads(LaunchRecord.begin(folder, 1).to_json()) | {"ending": "finished"}


@pytest.mark.parametrize(
    "change",
    [
        {"began_s": "x"}, {"began_s": None}, {"began_s": float("nan")}, {"began_s": -1.0},
        {"began_s": 1e300}, {"began_s": 10**400}, {"ended_s": float("inf")}, {"pid": "x"},
        {"command": "bray"}, {"command": [1]}, {"command": 3}, {"ending": "perhaps"},
        {"packages": []}, {"packages": {"a": 1}}, {"error": {}}, {"is_changed": 3},
        {"format": None}, {"seed": 1.5}, {"commit": ["[" * 10]},
    ],
)  # fmt: skip
def test_a_record_of_wrong_types_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = launch(tmp_path)
    (folder / RECORD).write_text(json.dumps(record(folder)))
    assert Trial(tmp_path).state == "finished"
    (folder / RECORD).write_text(json.dumps(record(folder) | change))
    with pytest.raises(CodecError, match="not the record of a launch"):
        LaunchRecord.read(folder)


BAD_JSON = {
    "cut": b'{"frames": 3, "ret', "list": b"[1]", "binary": b"\xff\xfe\x00", "empty": b"",
    "deep": b'{"a":' * 100_000, "rather deep": b'{"a":' * 40 + b"1" + b"}" * 40,
    "digits": b'{"frames": ' + b"9" * 5000 + b"}", "long": b'{"a": "' + b"x" * 2**20 + b'"}',
}  # fmt: skip


@pytest.mark.parametrize("data", BAD_JSON.values(), ids=BAD_JSON)
def test_a_result_or_record_that_cannot_be_read_is_named(tmp_path: Path, data: bytes) -> None:
    folder = launch(tmp_path)
    (tmp_path / "result.json").write_bytes(data)
    (folder / RECORD).write_bytes(data)
    with pytest.raises(CodecError, match=r"result\.json: ") as caught:
        Trial(tmp_path).result()
    assert len(str(caught.value)) < 1000
    with pytest.raises(CodecError, match=r"launch\.json: not the record"):
        LaunchRecord.read(folder)


@pytest.mark.parametrize("name", ["result.json", "config.yaml", f"launches/1/{RECORD}"])
def test_a_pipe_in_a_files_place_holds_nobody(tmp_path: Path, name: str) -> None:
    folder = launch(tmp_path)
    os.mkfifo(tmp_path / name)
    read = {"result.json": Trial(tmp_path).result, "config.yaml": Trial(tmp_path).config}
    with pytest.raises(CodecError, match="expected a regular file, got a named pipe"):
        read.get(name, lambda: LaunchRecord.read(folder))()


def test_numbers_of_a_file_are_numbers_of_a_float(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(f'{{"a": {"9" * 400}, "b": NaN, "c": 2, "d": true}}')
    found = read_object(tmp_path / "f.json")
    assert found is not None
    assert [finite(value) for value in found.values()] == [None, None, 2.0, None]
    assert read_object(tmp_path / "f.json" / "below") is None


def line(frames: int, **values: float) -> bytes:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return json.dumps({"frames": frames, "values": named}).encode()


def test_the_return_is_that_of_the_last_hundred_episodes(tmp_path: Path) -> None:
    windows = [(1, 90, 40.0), (2, 150, 55.0), (3, 151, 261.0)]  # the last second: one long episode
    lines = [line(n, actor__episodes=e, actor__episode_return=r) for n, e, r in windows]
    launch(tmp_path, "1", *lines, line(4, trainer__loss=1.0))
    wanted = (261.0 + 60 * 55.0 + 39 * 40.0) / 100
    assert recent_return(tmp_path) == pytest.approx(wanted)
    launch(tmp_path, "2", line(5, trainer__loss=1.0))
    assert recent_return(tmp_path) == pytest.approx(wanted), "a launch that has just begun"
    launch(tmp_path, "3", line(6, actor__episodes=50, actor__episode_return=100.0))
    after = (50 * 100.0 + 261.0 + 49 * 55.0) / 100
    assert recent_return(tmp_path) == pytest.approx(after), "counts of a launch begin at nothing"
    launch(tmp_path, "4", *(line(n, actor__episode_return=7.0) for n in range(200)))
    assert recent_return(tmp_path) == 7.0, "without counts a window is an episode"
    assert recent_return(tmp_path / "nowhere") is None


def test_counts_go_on_over_launches_as_frames_do(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        sink = JsonLinesSink(launch(tmp_path, name) / FILE)
        for step in (1, 2):
            values = {"task/wins": 5.0 * step, "actor/steps": 10.0 * step, "task/score": 2.0}
            sink.write(Axes(frames=10 * step), values, counts=["task/wins"])
        sink.close()
    assert curve(tmp_path, "task/wins")[1] == [5, 10, 15, 20, 25, 30]
    assert curve(tmp_path, "actor/steps")[1] == [10, 20, 30, 40, 50, 60], "also where no line says"
    assert curve(tmp_path, "task/score")[1] == [2] * 6
    first, second = (tmp_path / "launches" / "1" / FILE).read_text().splitlines()
    assert json.loads(first)["counts"] == ["task/wins"]
    assert "counts" not in json.loads(second)


def test_the_page_of_metrics_names_the_same_counts() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    named = re.findall(r"^\| (`.*?) \| count \|", page, re.M)
    assert {name for cell in named for name in re.findall(r"`(.*?)`", cell)} == COUNTS
