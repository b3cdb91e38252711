"""What is shipped for Prometheus and Grafana, with a real Prometheus and real processes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from bray.cli.commands import monitoring as command
from bray.monitoring import configuration
from bray.monitoring.configuration import write_configuration
from bray_core.errors import AlreadyExistsError, ConfigError

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed"
)

RUN = """
import json, sys
import bray
from bray_core import metrics
from bray_server import Client, ServerThread

class Echo:
    async def tick(self, body):
        return body

project, names = sys.argv[1], json.loads(sys.argv[2])
with bray.init(project, "trial") as run:
    server = ServerThread(Echo(), http_port=0)
    where = [run.serve_metrics(0), server.addresses[1]]
    print(json.dumps(where), flush=True)
    with Client(server.addresses[0]) as client:
        for line in sys.stdin:  # once a line, until it is closed
            for name, kind in names.items():
                metrics.record(name, 1.0, kind=kind)
            client.call(b"x")
            print(json.dumps(run.metrics()), flush=True)
    server.close()
"""


def documented() -> dict[str, str]:
    """Names on the page of metrics, and their kinds."""
    rows = re.findall(r"^\| (`.*?) \| (\w+) \|", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    return {name: kind for names, kind in rows for name in re.findall("`(.*?)`", names)}


def expressions() -> list[str]:
    """Every query of the dashboard, with its variables filled in as Grafana does."""
    text = (Path(configuration.__file__).parent / "dashboard.json").read_text()
    panels = json.loads(text)["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for variable, value in {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m"}.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Addresses of a run and a server, and what lets them record once more."""
    names = {name: kind for name, kind in documented().items() if not name.startswith("process/")}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "project"), json.dumps(names)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    where = [address.split("/")[2] for address in json.loads(process.stdout.readline())]

    def again() -> None:
        process.stdin.write("\n")  # type: ignore[union-attr]
        assert json.loads(process.stdout.readline())  # type: ignore[union-attr]

    yield where, again
    process.communicate(timeout=30)


@pytest.fixture
def ask(targets: Any, tmp_path: Path) -> Iterator[Callable[[str], list[Any]]]:
    """A Prometheus that scrapes the targets by the shipped configuration; answers a query."""
    configuration, _ = write_configuration(tmp_path / "monitoring", targets[0])
    text = configuration.read_text()
    assert "scrape_interval: 5s" in text
    configuration.write_text(text.replace("scrape_interval: 5s", "scrape_interval: 500ms"))
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={configuration}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )

    def ask(expression: str) -> list[Any]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}") as response:
            result: list[Any] = json.load(response)["data"]["result"]
            return result

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready") as response:
                return bool(response.status == 200)
        except OSError:
            return False

    deadline = time.monotonic() + DEADLINE_S
    while not is_ready():
        assert process.poll() is None, (tmp_path / "prometheus.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield ask
    process.terminate()
    process.wait(20)


@needs_prometheus
def test_a_prometheus_answers_every_query_of_the_dashboard(targets: Any, ask: Any) -> None:
    left = expressions()
    assert len(left) > 30
    deadline = time.monotonic() + DEADLINE_S
    while left:
        assert time.monotonic() < deadline, f"no data of {left}"
        targets[1]()
        left = [expression for expression in left if not finite(ask(expression))]
    for address in targets[0]:
        assert finite(ask(f'up{{instance="{address}"}}')) == [1.0]
    recorded = {series["metric"]["__name__"] for series in ask('{__name__=~"bray_.*"}')}
    for name, kind in documented().items():
        flat = "bray_" + re.sub(r"_s$", "_seconds", re.sub("[^a-z0-9_]", "_", name))
        flat = flat.replace("_per_seconds", "_per_s")
        assert {"count": f"{flat}_total", "mean": f"{flat}_count"}.get(kind, flat) in recorded


def finite(result: list[Any]) -> list[float]:
    return [float(row["value"][1]) for row in result if row["value"][1] != "NaN"]


@needs_prometheus
def test_prometheus_own_check_accepts_the_configuration(tmp_path: Path) -> None:
    path, _ = write_configuration(tmp_path / "m")
    done = subprocess.run(["promtool", "check", "config", path], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    known = {re.sub("[^a-z0-9_]", "_", name) for name in documented()}
    for expression in expressions():
        for found in re.findall(r"bray_(\w+?)(?:_total|_sum|_count|_bucket)?\{", expression):
            name = found.removesuffix("econds") if found.endswith("_seconds") else found
            if found not in ("requests", "request_seconds", "sessions", "errors"):
                assert name in known, expression


def test_panels_do_not_overlap() -> None:
    text = (Path(configuration.__file__).parent / "dashboard.json").read_text()
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(text)["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args([str(tmp_path / "m"), "one:1", "[::1]:2"])
    assert command.run(options) == 0
    assert 'targets: ["one:1", "[::1]:2"]' in (tmp_path / "m" / "prometheus.yml").read_text()
    assert "import it in Grafana" in capsys.readouterr().out
    with pytest.raises(AlreadyExistsError, match=r"prometheus.yml exists already"):
        command.run(options)
    wrong = ("nowhere", "a:b", 'x"]:1', "http://a:1", "a:99999", "a:0", "a:b:1", "::1:80", "a..b:1")
    for target in wrong:
        with pytest.raises(ConfigError, match="target: expected host:port, such as"):
            write_configuration(tmp_path / "other", [target])
