"""What the viewer reads of metrics: curves over launches, thinned, smoothed; the loop's figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray.viewer import curves, system_figures
from bray.viewer.metric_log import AXES, MetricLog, tail
from bray_core.files.trial_folders import launches
from bray_core.metrics.json_lines import Row, rows


def write(launch: Path, lines: list[dict[str, Any]], end: str = "\n") -> None:
    launch.mkdir(parents=True, exist_ok=True)
    with (launch / "metrics.jsonl").open("a") as file:
        file.write("\n".join(json.dumps(line) for line in lines) + end)


def line(frames: int, wall_s: float = 0.0, **values: float | None) -> dict[str, Any]:
    axes = {"frames": frames, "steps": 2 * frames, "policy_version": frames // 10}
    return {**axes, "seconds": wall_s, "wall_time_s": wall_s, "values": values}


def test_a_curve_goes_over_all_launches_on_any_axis(tmp_path: Path) -> None:
    write(tmp_path / "launches" / "20260101-000000", [line(10, 1.0, a=1.0), line(20, 2.0, a=2.0)])
    write(tmp_path / "launches" / "20260101-000000-2", [line(30, 3.0, a=3.0)])
    write(tmp_path / "launches" / "20260101-000000-10", [line(40, 4.0, a=4.0)])
    log = MetricLog(tmp_path)
    wanted = {"frames": [10, 20, 30, 40], "steps": [20, 40, 60, 80]}
    wanted |= {"seconds": [1, 2, 3, 4], "policy_version": [1, 2, 3, 4]}
    assert list(wanted) == list(AXES)
    for axis, x in wanted.items():
        found = log.curve("a", axis)[:2]
        assert [column.tolist() for column in found] == [x, [1.0, 2.0, 3.0, 4.0]]
    assert log.curve("unknown", "frames")[0].size == 0


def test_a_growing_file_is_read_on_and_a_cut_line_waits(tmp_path: Path) -> None:
    launch = tmp_path / "launches" / "1"
    log = MetricLog(tmp_path)
    assert log.curve("a", "frames")[0].size == 0
    whole = json.dumps(line(2, a=None, b=5.0))
    write(launch, [line(1, a=1.0)], end="\n" + whole[:20])
    assert log.curve("a", "frames")[1].tolist() == [1.0]
    with (launch / "metrics.jsonl").open("a") as file:
        file.write(whole[20:] + "\n{broken\n")
    assert log.curve("b", "frames")[0].tolist() == [2]
    for number in range(3, 100):  # more than are kept apart
        write(launch, [line(number, a=float(number))])
        assert log.curve("a", "frames")[1][-1] == number
    assert log.curve("a", "frames")[0].tolist() == [1, *range(3, 100)]
    assert log.curve("b", "frames")[0].tolist() == [2]
    assert log.num_bytes > 0


def test_a_trial_that_was_replaced_is_read_afresh(tmp_path: Path) -> None:
    log = MetricLog(tmp_path)
    write(tmp_path / "launches" / "1", [line(n, a=1.0) for n in range(9)])
    assert log.curve("a", "frames")[0].size == 9
    shutil.rmtree(tmp_path / "launches")
    write(tmp_path / "launches" / "2", [line(5, a=2.0)])
    assert log.curve("a", "frames")[1].tolist() == [2.0]
    (tmp_path / "launches" / "2" / "metrics.jsonl").write_text("")
    assert log.curve("a", "frames")[1].tolist() == []


def test_the_tail_is_that_of_the_newest_launch_that_wrote(tmp_path: Path) -> None:
    assert tail(tmp_path) == []
    assert launches(tmp_path) == []
    write(tmp_path / "launches" / "1", [line(n, a=1.0) for n in range(5000)])
    (tmp_path / "launches" / "2").mkdir()
    found = tail(tmp_path)
    assert found[-1].frames == 4999
    assert 100 < len(found) < 5000


def test_a_launch_that_has_not_played_yet_takes_no_figure_away(tmp_path: Path) -> None:
    before, after = tmp_path / "launches" / "20260101-000000", tmp_path / "launches" / "20260102-1"
    begun = {"process/cpu_cores{component=driver}": 1.0, "machine/cpu_share{host=a}": 0.5}
    write(after, [line(0, 20.0, **begun)])
    assert [row.wall_time_s for row in tail(tmp_path)] == [20.0]
    write(before, [line(10, 10.0, **{"trainer/loss": 1.0})])
    assert [row.wall_time_s for row in tail(tmp_path)] == [10.0]
    write(after, [line(20, 21.0, **{"trainer/loss": 0.5})])
    assert [row.wall_time_s for row in tail(tmp_path)] == [20.0, 21.0]


def test_what_is_no_line_is_left_out() -> None:
    good = json.dumps(line(1, a=1.0)).encode()
    found = rows(b"\n".join([b"[]", b'{"values": 3}', b"\xff", good, good[:-3]]))
    assert [row.frames for row in found] == [1]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([0.0, 0.5, 0.9]))
def test_smoothing_is_the_weighted_mean_of_what_came_before(
    values: list[float], weight: float
) -> None:
    got = curves.smoothed(np.array(values), weight)
    for t in range(len(values)):
        weights = [weight ** (t - i) for i in range(t + 1)]
        wanted = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
        assert got[t] == pytest.approx(wanted, abs=1e-6)


def test_thinning_keeps_the_ends_and_a_single_spike() -> None:
    y = np.zeros(100_000)
    y[71_234] = 1.0
    chosen = curves.thinned(y, 500)
    assert len(chosen) <= 500
    assert chosen[0] == 0
    assert chosen[-1] == 99_999
    assert 71_234 in chosen
    assert (np.diff(chosen) > 0).all()


@given(st.integers(0, 40), st.integers(4, 20), st.integers(0, 5))
def test_thinning_gives_rising_indices_and_the_envelope_holds_all(
    number: int, points: int, seed: int
) -> None:
    y = np.random.default_rng(seed).normal(size=number)
    chosen = curves.thinned(y, points)
    assert len(chosen) <= points
    assert len(chosen) == number or number > points
    assert (np.diff(chosen) > 0).all()
    low, high = curves.envelope(y, chosen)
    assert (low <= y[chosen]).all()
    assert (high >= y[chosen]).all()
    if number:
        assert {0, number - 1, y.argmin(), y.argmax()} <= set(chosen.tolist())
        assert low.min() == y.min()
        assert high.max() == y.max()


def row(at_s: float, **values: float) -> Row:
    named = {name.replace("__", "/"): v for name, v in values.items()}
    return Row(values=named, wall_time_s=at_s, frames=0, steps=0, policy_version=0, seconds=at_s)


def figure(found: dict[str, Any], part: str, words: str) -> float:
    (value,) = [f["value"] for f in found["figures"] if (f["part"], f["words"]) == (part, words)]
    return float(value)


def test_rates_are_taken_over_the_last_seconds() -> None:
    found = system_figures.figures(
        [row(0, actor__steps=0), row(100, actor__steps=1000), row(130, actor__steps=1600)], None
    )
    assert figure(found, "gamecore-actor", "ticks") == pytest.approx(20.0)  # 600 in 30 s
    assert found["at_s"] == 130
    assert system_figures.figures([], None)["figures"] == []


def test_what_was_never_counted_is_not_shown_and_losses_are() -> None:
    found = system_figures.figures([row(0, trainer__restarts=0, gamecore__restarts=2)], None)
    assert [f["part"] for f in found["figures"]] == ["gamecore"]


def limit(capacity: float | None = None, **values: float) -> tuple[str | None, str]:
    changed = {name: 0.0 for name in values if name.endswith(("steps", "dropped_segments"))}
    found = system_figures.figures([row(0, **{**values, **changed}), row(10, **values)], capacity)[
        "limit"
    ]
    return found["part"], found["words"]


def test_who_waits_tells_what_limits_the_run() -> None:
    waiting = {"trainer__train_s": 1.0, "trainer__wait_s": 3.0}
    part, words = limit(**waiting)
    assert part == "gamecore"
    assert "75% of its time" in words
    # 1,000 rows a second, 10 a forward, 8 ms each: 0.8 of the time
    forwards = {"actor__steps": 10_000.0, "model__batch_rows": 10.0, "model__forward_s": 0.008}
    part, words = limit(**waiting, **forwards)
    assert part == "model"
    assert "80%" in words
    part, words = limit(**waiting, actor__utilisation=0.9, model__utilisation=0.6)
    assert part == "gamecore"
    assert "step environments 90%" in words
    part, words = limit(**waiting, actor__utilisation=0.5, model__utilisation=0.6)
    assert part == "model"
    assert "60%" in words
    assert limit(trainer__utilisation=0.4)[0] == "gamecore"
    training = {"trainer__train_s": 1.0, "trainer__wait_s": 0.01}
    assert limit(**training, buffer__queued_segments=9.0)[0] == "trainer"
    part, words = limit(**training, buffer__dropped_segments=50.0)
    assert part == "trainer"
    assert "5 segments/s" in words
    part, words = limit(**training, buffer__queued_segments=0.0)
    assert part is None
    assert "take turns" in words
    assert "replay" in limit(**training, buffer__stored_steps=100.0)[1]
    assert "Too few" in limit()[1]


def test_a_trainer_that_waits_for_its_turn_is_not_said_to_wait_for_a_replay() -> None:
    turns = {"trainer__utilisation": 0.35, "trainer__train_s": 0.388, "trainer__wait_s": 45e-6}
    part, words = limit(**turns)
    assert part == "gamecore"
    assert words == (
        "Playing and training take turns, and training takes 35% of the time: "
        "playing limits this run."
    )
    busy = {"model__utilisation": 0.6}
    assert "takes 35% of the time, and the model computes 60%" in limit(**turns, **busy)[1]
    waiting = {**turns, "trainer__wait_s": 0.7}
    assert "waits 65% of its time for a replay" in limit(**waiting)[1]


def test_shares_are_between_nothing_and_all() -> None:
    found = system_figures.figures([row(0, buffer__queued_segments=48.0)], 64.0)
    assert found["shares"] == {"buffer full": 0.75}
    assert (
        system_figures.figures([row(0, buffer__queued_segments=90.0)], 64.0)["shares"][
            "buffer full"
        ]
        == 1
    )
