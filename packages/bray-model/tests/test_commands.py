import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from bray_core.cli import main
from bray_core.codec import decode, encode
from bray_core.errors import ServiceError
from bray_model import Model
from bray_server import Client

# Runs the command, then tells which heavy modules the process has loaded.
SCRIPT = """
import sys
from bray_core.cli import main
code = main(sys.argv[1:])
print("heavy:", *sorted({"torch", "ray", "tensorboard"} & set(sys.modules)))
sys.exit(code)
"""


@contextmanager
def serving(*arguments, **environment):
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SCRIPT,
            "serve",
            *map(str, arguments),
            "--tcp-port=0",
            "--http-port=0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        yield process, "".join(lines)
    finally:
        process.kill()
        process.communicate()


def address(text, scheme):
    return re.search(rf"{scheme}://127.0.0.1:\d+", text)[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_without_torch_or_ray_and_ends_in_time(exported, observations, row, number):
    folder, _, model = exported
    inputs = row(observations(1), 0)
    with serving(folder) as (process, text):
        assert text.startswith(f"serving policy version 0 from {folder}\nlistening on tcp://")
        for scheme in ("tcp", "http"):
            with Client(address(text, scheme)) as client:
                reply = decode(client.call(encode(list(inputs))))
                with pytest.raises(ServiceError, match=r"bad_request"):
                    client.call(b"nonsense")
            assert reply["outputs"]["logits"] == pytest.approx(model(*inputs)["logits"], abs=1e-4)
        start = time.monotonic()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=10)
        assert time.monotonic() - start < 5
        assert (process.returncode, rest, errors) == (0, "stopped\nheavy:\n", "")


def test_the_example_that_serve_prints_works(exported):
    with serving(exported[0]) as (_, text):
        line = text.splitlines()[2]
        assert line.startswith('try: python -c "import numpy as np; ')
        command = line.removeprefix("try: ").replace("python", sys.executable, 1)
        run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        assert "'version': 0" in run.stdout, run.stderr


def test_serve_takes_a_trial_and_asks_for_a_token(exported, observations, row, tmp_path):
    (tmp_path / "models/policy/onnx").mkdir(parents=True)
    (tmp_path / "models/policy/onnx/0").symlink_to(exported[0])
    body = encode(list(row(observations(1), 0)))
    with serving(tmp_path, "--token-env=BRAY_TEST_TOKEN", BRAY_TEST_TOKEN="secret") as (_, text):
        assert f"from {tmp_path}/models/policy/onnx/0" in text
        with Client(address(text, "tcp"), token="secret") as client:
            assert decode(client.call(body))["version"] == 0
        for scheme in ("tcp", "http"):
            with (
                pytest.raises(ServiceError, match=r"unauthorized"),
                Client(address(text, scheme), token="wrong") as client,
            ):
                client.call(body)


@pytest.mark.parametrize("option", ["--tcp-port", "--http-port"])
def test_a_port_in_use_names_the_option(exported, capsys, option):
    other = "--http-port" if option == "--tcp-port" else "--tcp-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["serve", str(exported[0]), f"{option}={port}", f"{other}=0"]
        assert main(arguments) == 2
    assert capsys.readouterr().err == (
        f"error: port {port} on 127.0.0.1 is already in use: "
        f"choose another with {option}, or 0 for any free one\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tcp-port=70000"], "--tcp-port: expected 0 to 65535, got 70000"),
        (["--http-port=-1"], "--http-port: expected 0 to 65535, got -1"),
        (["--token-env=BRAY_UNSET"], "--token-env: environment variable BRAY_UNSET is not set"),
        (["--max-batch-size=0"], "max_batch_size: expected an integer of 1 or more, got 0"),
    ],
)
def test_serve_refuses_bad_options(exported, capsys, arguments, message):
    assert main(["serve", str(exported[0]), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "export"])
def test_a_folder_without_export_is_told(tmp_path, capsys, command):
    assert main([command, str(tmp_path / "absent")]) == 2
    assert "no such folder: give an export or a trial" in capsys.readouterr().err
    assert main([command, str(tmp_path)]) == 2
    assert "neither an export (manifest.json) nor a trial with one" in capsys.readouterr().err


def test_serve_with_an_actor_that_is_not_installed(export_copy, capsys):
    path = export_copy / "manifest.json"
    content = json.loads(path.read_text())
    content["actor"] = {"name": "polcy", "config": {}}
    path.write_text(json.dumps(content))
    assert main(["serve", str(export_copy)]) == 2
    assert "error: actor 'polcy': not installed; installed: " in capsys.readouterr().err


def test_the_printed_example_repeats_no_odd_names_of_a_manifest(export_copy):
    from bray_model.commands import _example
    from bray_model.manifest import Manifest

    path = export_copy / "manifest.json"
    path.write_text(path.read_text().replace('"units"', '"$(reboot)"'))
    assert "reboot" not in _example(Manifest.read(export_copy), "tcp://127.0.0.1:1")


def test_export_shows_checks_and_copies(exported, tmp_path, capsys):
    folder, report, _ = exported
    target = tmp_path / "copy"
    assert main(["export", str(folder), "--output", str(target)]) == 0
    out = capsys.readouterr().out
    assert report.table() in out
    assert out.splitlines()[0] == f"policy version 0 in {folder}: all checksums match"
    assert out.splitlines()[-1] == f"copied to {target}; try: bray serve {target}"
    with Model(target) as copy:
        assert copy.version == 0


def test_export_refuses_a_broken_export(export_copy, capsys):
    (export_copy / "report.json").write_text("{}")
    assert main(["export", str(export_copy)]) == 2
    assert "report.json: its 2 bytes do not have the checksum" in capsys.readouterr().err
