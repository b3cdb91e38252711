from __future__ import annotations

import json
import math
import shutil
import subprocess

import pytest

from bray_core.metrics import Registry, prometheus


def recorded() -> Registry:
    registry = Registry()
    for value in (2.0, 2.0, 2.0):
        registry.record("model/forward_s", value)
    registry.record("actor/steps", 5, kind="count", map='a "b" \\')
    registry.record("buffer/queued", 7, kind="last")
    registry.record("trainer/frames_per_s", math.inf, kind="max")
    return registry


def test_the_text() -> None:
    text = prometheus.text({"": prometheus.rows(recorded())})
    lines = [line for line in text.splitlines() if not line.startswith("# HELP")]
    assert lines == [
        "# TYPE bray_model_forward_seconds summary",
        'bray_model_forward_seconds{quantile="0.5"} 2',
        'bray_model_forward_seconds{quantile="0.9"} 2',
        'bray_model_forward_seconds{quantile="0.99"} 2',
        "bray_model_forward_seconds_sum 6",
        "bray_model_forward_seconds_count 3",
        "# TYPE bray_actor_steps_total counter",
        'bray_actor_steps_total{map="a \\"b\\" \\\\"} 5',
        "# TYPE bray_buffer_queued gauge",
        "bray_buffer_queued 7",
        "# TYPE bray_trainer_frames_per_s gauge",
        "bray_trainer_frames_per_s +Inf",
    ]


def test_sums_and_counts_go_on_though_windows_end() -> None:
    registry = recorded()
    registry.drain()
    registry.record("model/forward_s", 4.0)
    text = prometheus.text({"": prometheus.rows(registry)})
    assert "bray_model_forward_seconds_sum 10\nbray_model_forward_seconds_count 4\n" in text
    assert [sample.total for sample in registry.drain()] == [4], "a look takes nothing away"


def test_several_workers_make_one_family() -> None:
    rows = json.loads(json.dumps(prometheus.rows(recorded())))  # as they come from another worker
    text = prometheus.text({"one": rows, "two": rows})
    assert text.count("# TYPE bray_model_forward_seconds summary") == 1
    assert 'bray_buffer_queued{worker="one"} 7\nbray_buffer_queued{worker="two"} 7\n' in text


def test_two_metrics_of_one_name_there(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    registry.record("a/b_c", 1, kind="last")
    registry.record("a_b/c", 2, kind="last")
    assert "bray_a_b_c 1\n" in prometheus.text({"": prometheus.rows(registry)})
    assert "a/b_c and a_b/c are both bray_a_b_c there" in caplog.text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus is not installed")
def test_prometheus_own_linter_has_no_complaint() -> None:
    registry = Registry()
    registry.record("model/forward_s", 1.0)
    registry.record("actor/steps", 5, kind="count", map='a "b" \\')
    registry.record("buffer/queued", 7, kind="last")
    text = prometheus.text({"": prometheus.rows(registry)})
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
