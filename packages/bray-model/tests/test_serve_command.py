"""`bray serve` as a process, asked over its ports."""

import dataclasses
import io
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import torch
import trustme

from bray_core.cli import main
from bray_core.codec import decode, encode
from bray_core.errors import ConfigError, ServiceError
from bray_model import Model, ModelConfig
from bray_model.export.quantize import quantize
from bray_model.export_files.agent_file import pack_agent
from bray_model.export_files.manifest import Manifest
from bray_model.serving import serving_processes
from bray_model.serving.infer_request import MAX_REPLY_BYTES
from bray_model.serving.serve_example import example, played_by
from bray_model.serving.serve_options import OTHER_LIMITS, SERVER_LIMITS
from bray_model.serving.session_recording import record_share
from bray_server import Client, Limits

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
        lines = [process.stdout.readline()]
        while lines[-1] and not lines[-1].startswith("try: "):
            lines.append(process.stdout.readline())
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


@pytest.mark.parametrize(
    ("options", "backend"), [([], "int8-dynamic"), (["--backend=auto"], "auto")]
)
def test_serve_takes_the_backend_that_bench_recommended(
    export_copy, observations, row, options, backend
):
    quantize(export_copy, "int8-dynamic")
    path = export_copy / "manifest.json"
    content = json.loads(path.read_text())
    content["recommended"] = {"num_threads": 1, "max_batch_size": 8, "backend": "int8-dynamic"}
    path.write_text(json.dumps(content))
    inputs = row(observations(1), 0)
    with (
        Model(export_copy, config=ModelConfig(backend=backend)) as model,
        serving(export_copy, *options) as (_, text),
        Client(address(text, "tcp")) as client,
    ):
        reply = decode(client.call(encode(list(inputs))))
        np.testing.assert_array_equal(reply["outputs"]["logits"], model(*inputs)["logits"])


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """Options of a server with TLS and a token."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    tls = [f"--tls-certificate={folder}/certificate.pem", f"--tls-key={folder}/key.pem"]
    return [*tls, "--token-env=BRAY_TEST_TOKEN"]


def run_the_example(text):
    """Run the line that `bray serve` printed, as a user would."""
    line = text.splitlines()[-1]
    assert line.startswith('try: python -c "import ')
    command = line.removeprefix("try: ").replace("python", sys.executable, 1)
    environment = {**os.environ, "BRAY_TEST_TOKEN": "secret"}
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, env=environment
    )


def test_the_example_that_serve_prints_works(exported, secured):
    for options in ([], secured):
        with serving(exported[0], *options, BRAY_TEST_TOKEN="secret") as (_, text):
            run = run_the_example(text)
            assert "'version': 0" in run.stdout, run.stderr


def test_the_example_of_several_models_works(exported, numbers, secured, tmp_path):
    shutil.copytree(exported[0], tmp_path / "policy/0")
    for number in ("1", "2"):
        shutil.copytree(numbers / number, tmp_path / "number" / number)
    with serving(tmp_path, *secured, BRAY_TEST_TOKEN="secret") as (_, text):
        run = run_the_example(text)
        assert '"model_name":"number","model_version":"2"' in run.stdout, run.stderr
    with serving(tmp_path, "--model=policy") as (_, text):
        run = run_the_example(text)
        assert "'version': 0" in run.stdout, run.stderr


def test_the_example_names_where_it_can_be_reached(exported):
    manifest = Manifest.read(exported[0])
    for address, reached in [
        ("tcp://[::1]:7", "tcp://[::1]:7"),
        ("tcp://[::]:7", "tcp://[::1]:7"),
        ("tcps://0.0.0.0:7", "tcps://127.0.0.1:7"),
    ]:
        assert f"Client('{reached}')" in example(manifest, address)
    line = example(manifest, "tcps://x:7", token_env="$(reboot)", certificate="a'b.pem")
    assert "os.environ['TOKEN'], certificate_authority='certificate.pem')" in line
    actor = replace(manifest, actor={"name": "policy", "config": {}})
    assert example(actor, "tcps://x:7", token_env="T", certificate="c.pem") == (
        "SSL_CERT_FILE='c.pem' bray play ENVIRONMENT --address tcps://x:7 --token-env T"
    )


SOURCES = {
    "{environment: Lake-v1, kwargs: {n: 1}}": "TRIAL",
    "{environment: Lake-v1, external: true}": "ENVIRONMENT",
    "{environment: Lake-v1, command: [./game]}": "ENVIRONMENT",
    "{environment: chess_v6, kind: matches}": "ENVIRONMENT",
    "{environment: ''}": "ENVIRONMENT",
    "{environment: [}": "ENVIRONMENT",
    "[]": "ENVIRONMENT",
}


@pytest.mark.parametrize("source", SOURCES)
def test_it_says_what_a_trial_plays(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export = Path("runs/it's/models/policy/onnx/3")
    export.mkdir(parents=True)
    (tmp_path / "runs/it's/config.yaml").write_text(f"algorithm: ppo\nsource: {source}\n")
    wanted = SOURCES[source].replace("TRIAL", """'runs/it'"'"'s'""")
    for path in (Path("runs/it's"), export, tmp_path / export):
        assert played_by(path) == wanted
    monkeypatch.chdir("runs/it's")
    assert played_by(Path()) == SOURCES[source].replace("TRIAL", "./.")
    assert played_by(tmp_path) == "ENVIRONMENT"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        (None, "ENVIRONMENT"),
        ({}, "ENVIRONMENT"),
        ({"environment": "Lake-v1"}, "Lake-v1"),
        (
            {"environment": "Lake-v1", "kwargs": {"slip": False, "map": "4x4"}, "frame_skip": 2},
            """Lake-v1 frame_skip=2 kwargs.slip=false 'kwargs.map="4x4"'""",
        ),
        ({"environment": "$(reboot)"}, "'$(reboot)'"),
        ({"environment": "a\nb"}, "ENVIRONMENT"),
    ],
)
def test_it_says_what_a_packed_agent_plays(exported, environment, wanted, tmp_path):
    pack_agent(tmp_path / "agent.bray", {"policy": exported[0]}, {}, environment)
    assert played_by(tmp_path / "agent.bray") == wanted
    actor = replace(Manifest.read(exported[0]), actor={"name": "policy", "config": {}})
    line = example(actor, "tcp://x:7", played=played_by(tmp_path / "agent.bray"))
    assert line == f"bray play {wanted} --address tcp://x:7"


def test_limits_are_options_with_the_servers_defaults():
    for name, (default, _) in SERVER_LIMITS.items():
        assert getattr(Limits(), name) == default, name
    config = ModelConfig()
    assert OTHER_LIMITS["max_queue_rows"][0] == config.max_queue_rows
    assert OTHER_LIMITS["sequence_idle_s"][0] == config.session_idle_s
    assert OTHER_LIMITS["max_reply_bytes"][0] == MAX_REPLY_BYTES


@pytest.mark.parametrize("workers", [1, 2])
def test_limits_of_the_command_line_hold(numbers, workers):
    limits = ("--max-body-bytes=2000", "--max-queue-rows=3", "--max-reply-bytes=50")
    with serving(numbers / "1", *limits, f"--workers={workers}") as (_, text):
        web = address(text, "http")
        for rows, status, words in [
            (1, 200, b'"data":[1.0]'),
            (3, 400, b"larger --max-reply-bytes"),
            (4, 400, b"larger --max-queue-rows"),
            (2000, 413, b"the limit of 2000"),
        ]:
            tensor = {"name": "inputs[0]", "datatype": "FP32", "shape": [rows, 2]}
            body = json.dumps({"inputs": [{**tensor, "data": [0] * 2 * rows}]}).encode()
            got = put(web, "/v2/models/number/infer", body, None, "POST")
            assert got[0] == status, got
            assert words in got[1]


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
        (["--admin-port=70000"], "--admin-port: expected 0 to 65535, got 70000"),
        (["--workers=0"], "--workers: expected 1 or more, got 0"),
        (["--drain-s=nan"], "--drain-s: expected 0 or more, got nan"),
        (["--tls-key=k.pem"], "--tls-certificate and --tls-key: expected both or none"),
        (["--tls-key=k.pem", "--tls-certificate=c.pem"], "tls: cannot use certificate 'c.pem'"),
        (["--model=nobody"], "model 'nobody': not served; served: ['policy']"),
        (["--workers=2", "--model=nobody"], "ended before it listened: see what it said above"),
        (["--max-body-bytes=0"], "--max-body-bytes: expected more than 0, got 0"),
        (["--tick-timeout-s=nan"], "--tick-timeout-s: expected more than 0, got nan"),
        (["--backend=int8"], "backend='int8': "),
        (["--backend=onnx"], "backend: expected one of auto, int8, "),
        (["--device=gpu"], "device: expected one of cpu, cuda, got 'gpu'"),
        (["--max-batch-size=0"], "max_batch_size: expected 1 or more, got 0"),
        (["--record-folder=games"], "--record-folder: expected --record-share, too"),
        (["--record-files=9"], "--record-files: expected --record-share, too"),
        (["--context-length=99"], "--context-length: expected to be left out: "),
        (["--precision=bf16"], "is no language model"),
    ],
)
def test_serve_refuses_bad_options(exported, capsys, arguments, message):
    assert main(["serve", str(exported[0]), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_recording_into_what_is_no_folder_is_refused(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    message = re.escape(f"--record-folder: cannot write into {taken}: ")
    with pytest.raises(ConfigError, match=message):
        record_share(lambda session: None, share=0.5, folder=taken, max_files=1)


def test_serve_with_an_actor_that_is_not_installed(export_copy, capsys):
    path = export_copy / "manifest.json"
    content = json.loads(path.read_text())
    content["actor"] = {"name": "polcy", "config": {}}
    path.write_text(json.dumps(content))
    assert main(["serve", str(export_copy)]) == 2
    assert "error: actor 'polcy': not installed; installed: " in capsys.readouterr().err


def test_the_printed_example_repeats_no_odd_names_of_a_manifest(export_copy):
    path = export_copy / "manifest.json"
    path.write_text(path.read_text().replace('"units"', '"$(reboot)"'))
    manifest = Manifest.read(export_copy)
    assert "reboot" not in example(manifest, "tcp://127.0.0.1:1")
    manifest = replace(manifest, name="a'+reboot()+'$(reboot)")
    line = example(manifest, "http://127.0.0.1:1", of_several=True)
    assert "$(" not in line
    assert "'+" not in line


# A model whose only output is its version.


def weights_of(number):
    return {"weight": np.zeros((1, 2), np.float32), "bias": np.float32([number])}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A folder of exports by number."""
    folder = tmp_path_factory.mktemp("numbers")
    with Model(torch.nn.Linear(2, 1), np.zeros((1, 2), np.float32), name="number") as model:
        for number in (1, 2, 3):
            model.publish(weights_of(number))
            model.export(folder / str(number))
    return folder


BODY = encode([np.ones(2, np.float32)])


def put(address, path, body, token=None, method="PUT"):
    connection = HTTPConnection(address.partition("://")[2], timeout=30)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    answer = reply.status, reply.read()
    connection.close()
    return answer


def admin_address(text):
    return re.search(r"(http://127.0.0.1:\d+) \(admin\)", text)[1]


class Load:
    """Calls as quickly as it can from several threads; every answer must be whole."""

    def __init__(self, addresses, threads=2):
        self.failures = []
        self.seen = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(where,)) for where in addresses * threads
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, where):
        last = 0
        with Client(where) as client:
            while not self._stop.is_set():
                try:
                    reply = decode(client.call(BODY))
                except Exception as error:  # noqa: BLE001  told by `stop`
                    self.failures.append(error)
                    return
                version = reply["version"]
                if float(reply["outputs"][0]) != version or version < last:
                    self.failures.append((reply, last))
                last = version
                self.seen.append(version)

    def wait_for(self, version):
        deadline = time.monotonic() + 30
        while version not in self.seen[-50:]:
            assert not self.failures
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures
        return set(self.seen)


def test_new_exports_and_publishes_swap_without_one_failed_request(numbers, tmp_path):
    served = tmp_path / "served"
    shutil.copytree(numbers / "1", served)
    with serving(served, "--admin-port=0") as (_, text):
        load = Load([address(text, "tcp"), address(text, "http")])
        load.wait_for(1)
        with Model(numbers / "2") as newer:  # written as `Model.export` writes: renamed into place
            assert newer.version == 2
        (tmp_path / "old").mkdir()
        shutil.copytree(numbers / "2", tmp_path / "new")
        served.rename(tmp_path / "old/1")
        (tmp_path / "new").rename(served)
        load.wait_for(2)
        admin = admin_address(text)
        for number in range(3, 30):
            body = safetensors.numpy.save(weights_of(number))
            assert put(admin, "/models/number/weights", body) == (200, b'{"version":%d}' % number)
        load.wait_for(29)
        assert {1, 2, 29} <= load.stop()


def test_the_admin_port_names_what_is_wrong(numbers):
    token = {"BRAY_TEST_TOKEN": "secret"}
    with serving(numbers / "1", "--admin-port=0", "--token-env=BRAY_TEST_TOKEN", **token) as (
        _,
        text,
    ):
        admin = admin_address(text)
        good = safetensors.numpy.save(weights_of(5))
        where = "/models/number/weights"
        wrong = safetensors.numpy.save({**weights_of(5), "bias": np.zeros(2, np.float32)})
        half = safetensors.numpy.save(weights_of(5).__class__(bias=np.zeros(1, np.float32)))
        for path, body, status, words in [
            (where, b"nonsense", 400, b"body: expected a safetensors file"),
            (where, good[:-1], 400, b"body: expected a safetensors file"),
            (where, wrong, 400, b"weights/bias: expected float32 (1,), got float32 (2,)"),
            (where, half, 400, b"weights/weight: missing"),
            ("/models/nobody/weights", good, 404, b"model 'nobody': not served"),
            ("/elsewhere", good, 404, b"expected /models/NAME/weights"),
        ]:
            got, answer = put(admin, path, body, "secret")
            assert (got, words in answer) == (status, True), answer
        assert put(admin, where, None, "secret", "GET")[0] == 405
        assert put(admin, where, good)[0] == 401
        with Client(address(text, "tcp"), token="secret") as client:
            assert decode(client.call(BODY))["version"] == 1, "nothing of it took effect"
            assert put(admin, where, good, "secret") == (200, b'{"version":2}')
            assert decode(client.call(BODY))["outputs"] == [5.0]


def is_alive(pid):
    """A zombie is not; it may wait for a process above that Ray has made the keeper of orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_several_processes_share_the_ports_and_what_is_published(numbers):
    with serving(numbers / "1", "--workers=2", "--admin-port=0") as (process, text):
        tcp, http = address(text, "tcp"), address(text, "http")
        admin = admin_address(text)
        load = Load([tcp] * 4)
        for number in range(2, 20):
            body = safetensors.numpy.save(weights_of(number))
            assert put(admin, "/models/number/weights", body) == (200, b'{"version":%d}' % number)
        load.wait_for(19)
        load.stop()
        before = children(process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        deadline = time.monotonic() + 60
        names = set()
        while len(names) < 2 or before[0] in children(process.pid):  # until another listens
            assert time.monotonic() < deadline
            time.sleep(0.05)
            try:
                metrics = put(http, "/metrics", None, None, "GET")[1].decode()
            except ConnectionResetError:  # the killed one had it, and has just ended
                continue
            names = set(re.findall(r'worker="(\w+)"', metrics))
        for _ in range(20):
            with Client(tcp) as client:
                assert decode(client.call(BODY)) == {"outputs": pytest.approx([19]), "version": 19}
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest) == (0, "stopped\nheavy:\n"), errors
        assert re.search(r"worker [01] ended with -9: starting another", errors)
        assert not any(map(is_alive, before))


@pytest.mark.parametrize("workers", [1, 2])
def test_fixed_weights_are_not_published(numbers, tmp_path, workers):
    quantize(shutil.copytree(numbers / "1", tmp_path / "e"), "int8-dynamic")
    options = ("--backend=int8-dynamic", "--admin-port=0", f"--workers={workers}")
    with serving(tmp_path / "e", *options) as (process, text):
        body = safetensors.numpy.save(weights_of(2))
        status, answer = put(admin_address(text), "/models/number/weights", body)
        assert (status, b"fixed" in answer) == (400, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_workers_end_with_the_process_above_them(numbers):
    with serving(numbers / "1", "--workers=2") as (process, _):
        workers = children(process.pid)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while any(map(is_alive, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_several_models_side_by_side(numbers, exported, tmp_path, observations, row):
    shutil.copytree(numbers / "1", tmp_path / "number/1")
    shutil.copytree(numbers / "2", tmp_path / "number/2")
    shutil.copytree(exported[0], tmp_path / "policy")
    infer = json.dumps(
        {"inputs": [{"name": "inputs[0]", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]}]}
    ).encode()
    with serving(tmp_path) as (_, text):
        assert text.count("serving ") == 3
        web = address(text, "http")
        for version, want in (("", 2), ("/versions/1", 1), ("/versions/2", 2)):
            status, body = put(web, f"/v2/models/number{version}/infer", infer, None, "POST")
            assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [want])
        with (
            pytest.raises(
                ServiceError, match=r"several models.*\['number', 'policy'\]: start with"
            ),
            Client(address(text, "tcp")) as client,
        ):
            client.call(BODY)
    with serving(tmp_path, "--model=policy") as (_, text), Client(address(text, "tcp")) as client:
        assert decode(client.call(encode(list(row(observations(1), 0)))))["version"] == 0


def test_tls_on_every_port(numbers, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    options = [
        f"--tls-certificate={tmp_path}/certificate.pem",
        f"--tls-key={tmp_path}/key.pem",
        "--admin-port=0",
    ]
    with serving(numbers / "1", *options) as (_, text):
        assert text.count("https://127.0.0.1") == 2
        for scheme in ("tcps", "https"):
            where = address(text, scheme)
            with Client(where, certificate_authority=tmp_path / "authority.pem") as client:
                assert decode(client.call(BODY))["outputs"] == [1.0]


def test_every_limit_of_a_server_is_an_option():
    fields = {field.name: field.default for field in dataclasses.fields(Limits)}
    assert {name: default for name, (default, _) in SERVER_LIMITS.items()} == fields


def test_limits_come_from_a_file_and_from_the_command_line(exported, observations, row, tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("max_body_bytes: 1000\nmax_header_bytes: 500\ntick_timeout_s: 5\n")
    body = encode(list(row(observations(1), 0)))
    with (
        serving(exported[0], f"--limits={file}", "--max-header-bytes=3000") as (_, text),
        Client(address(text, "http")) as client,
    ):
        assert decode(client.call(body))["version"] == 0
        with pytest.raises(ServiceError, match="exceeds the limit of 1000"):
            client.call(bytes(1001))
        with pytest.raises(ServiceError, match="the headers exceed the limit of 3000"):
            client.tick("x" * 4000, b"")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("max_sesions: 3", r"limits.yaml:1:1: .*max_sesions.*max_sessions"),
        ("max_sessions: many", r"limits.yaml:1:1: max_sessions: expected"),
        ("max_sessions: 0", "--max-sessions: expected more than 0, got 0"),
        ("max_client_share: 1.5", "max_client_share: expected more than 0 and at most 1, got 1.5"),
    ],
)
def test_a_file_of_limits_is_checked(exported, capsys, tmp_path, written, message):
    file = tmp_path / "limits.yaml"
    file.write_text(written)
    assert main(["serve", str(exported[0]), f"--limits={file}"]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_says_no_to_new_connections_after_sigterm(exported, observations, row, workers):
    body = encode(list(row(observations(1), 0)))
    options = (f"--workers={workers}", "--lame-duck-s=60", "--drain-s=60")
    with serving(exported[0], *options) as (process, text):
        where = address(text, "http").removeprefix("http://")
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        for _ in range(10):  # a connection each: the kernel chooses the worker
            while ask_ready(where) != 503:
                assert time.monotonic() < deadline
        with Client(address(text, "tcp")) as client:
            assert decode(client.call(body))["version"] == 0, "answers go on"
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def ask_ready(where):
    connection = HTTPConnection(where, timeout=10)
    connection.request("GET", "/ready")
    with connection.getresponse() as response:
        response.read()
        connection.close()
        return response.status


def test_a_worker_that_dies_again_and_again_is_started_later_each_time(monkeypatch):
    """The watch's own steps, by a clock of the test: no process is started."""
    ended = SimpleNamespace(returncode=1, stdin=io.BytesIO(), stdout=io.BytesIO())
    watch = object.__new__(serving_processes.ServingProcesses)
    watch._deaths, watch._due, watch._processes = [[]], {}, [ended]
    started = []
    watch._spawn = lambda: started.append(now) or ended
    now = 0.0
    while now < 120:
        watch._replace(0, ended, now)  # the process never lives when it is looked at
        now += 0.5
    gaps = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert gaps[:4] == [2.5, 4.5, 8.5, 16.5], "1, 2, 4, 8, 16 s, and the look that finds it dead"
    assert max(gaps) <= 30.5
    watch._replace(0, ended, now + 1_000)
    watch._replace(0, ended, now + 1_001)
    assert watch._due[0] == now + 1_002, "deaths of long ago are forgotten"


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_serve_takes_a_packed_agent_and_leaves_nothing(
    exported, observations, row, tmp_path, workers
):
    agent = tmp_path / "agent.bray"
    pack_agent(agent, {"policy": exported[0]}, {})
    body = encode(list(row(observations(1), 0)))
    with tempfile.TemporaryDirectory() as temporary:  # short: sockets lie there
        with serving(agent, *workers, TMPDIR=temporary) as (process, text):
            with Client(address(text, "tcp")) as client:
                assert decode(client.call(body))["version"] == 0
            assert list(Path(temporary).glob("bray-agent-*"))
            assert f" from {agent}\n" in text, "the file, not where it was unpacked"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=20)[1] == ""
        assert not list(Path(temporary).glob("bray-*"))


def test_serve_refuses_a_file_that_is_no_agent(tmp_path, capsys):
    (tmp_path / "agent.bray").write_bytes(b"nothing of the kind, whatever it is called")
    assert main(["serve", str(tmp_path / "agent.bray")]) == 2
    assert "expected an agent file that `bray pack` wrote" in capsys.readouterr().err
