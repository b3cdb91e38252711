"""Sequences of the Open Inference Protocol: none is ever answered from a state that is not its own.

Asked of `bray serve`, whose workers the kernel chooses anew for each connection, and of pages that
share nothing but a group's folder.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from bray_core.errors import ServiceError
from bray_model import Model, ModelConfig
from bray_model.serving.open_inference_pages import OpenInferencePages
from bray_model.serving.repository import ExportRepository
from bray_server import PageRequest

GRU = "gru"
SERVE = "import sys; from bray_core.cli import main; sys.exit(main(sys.argv[1:]))"


class Recurrent(torch.nn.Module):
    """A GRU cell; its state is an input and an output."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(3, 4)

    def forward(self, row, state):
        state = self.cell(row, state)
        return {"sum": state.sum(-1), "state": state}


@pytest.fixture(scope="module")
def gru(tmp_path_factory):
    """The folder of a recurrent export, and its module."""
    torch.manual_seed(0)
    module = Recurrent()
    example = (np.zeros((1, 3), np.float32), np.zeros((1, 4), np.float32))
    folder = tmp_path_factory.mktemp("gru") / "export"
    with Model(module, example, name=GRU, state={"inputs[1]": "outputs/state"}) as model:
        model.export(folder)
    return folder, module


def sums_of(module, rows):
    """What the module answers to the rows of one sequence."""
    state, sums = torch.zeros(1, 4), []
    for row in rows:
        with torch.no_grad():
            state = module.cell(torch.from_numpy(row[None]), state)
        sums.append(state.sum(-1).numpy())
    return sums


def rows_of(seed):
    return np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)


def ask_anew(where, row, **options):
    """Ask on a new connection."""
    tensor = triton.InferInput("inputs[0]", [1, 3], "FP32")
    tensor.set_data_from_numpy(row[None])
    with triton.InferenceServerClient(where) as client:
        return client.infer(GRU, [tensor], **options).as_numpy("outputs/sum")


@contextmanager
def served_by_two(folder):
    """A process that serves with two workers, and the netloc of their HTTP port."""
    command = [sys.executable, "-c", SERVE, "serve", str(folder), "--workers=2"]
    process = subprocess.Popen(
        [*command, "--tcp-port=0", "--http-port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = next(line for line in process.stdout if line.startswith("listening"))
        yield process, re.search(r"http://(\S+)", line)[1]
    finally:
        process.kill()
        process.communicate()


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_workers_find_a_sequence_from_any_connection(gru):
    folder, module = gru
    with served_by_two(folder) as (process, where):
        names = [*range(1, 9), *(f"session {number}" for number in range(4))]
        for step in range(4):
            for name in names:
                rows = rows_of(seed=len(str(name)))
                ends = {"sequence_start": step == 0, "sequence_end": step == 3}
                got = ask_anew(where, rows[step], sequence_id=name, **ends)
                wanted = sums_of(module, rows)[step]
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        row = rows_of(seed=1)[0]
        for name in names:
            with pytest.raises(InferenceServerException, match=r"\[400\].*with sequence_start"):
                ask_anew(where, row, sequence_id=name)
        for _ in range(6):  # where it lives, it begins anew
            got = ask_anew(where, row, sequence_id=1, sequence_start=True)
            np.testing.assert_allclose(
                got, sums_of(module, rows_of(seed=1))[0], rtol=1e-4, atol=1e-5
            )
        for name in names:
            ask_anew(where, row, sequence_id=name, sequence_start=True)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        for name in names:
            try:
                ask_until_connected(where, row, sequence_id=name)
            except InferenceServerException as error:  # it lived where nobody is now
                assert "sequence_start" in str(error)
                ask_until_connected(where, row, sequence_id=name, sequence_start=True)
            ask_until_connected(where, row, sequence_id=name, sequence_end=True)


def ask_until_connected(where, row, **options):
    """Ask; the kernel takes a moment to close what a killed worker had."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return ask_anew(where, row, **options)
        except InferenceServerException as error:
            if "ask again" not in str(error):
                raise
        except (OSError, HTTPConnectionClosed):
            pass
        assert time.monotonic() < deadline


class Group:
    """Workers in one process: each has pages of its own, as with `bray serve --workers`."""

    def __init__(self, folder, count, config):
        self.owners = {}
        self.repositories = [ExportRepository(folder, lambda _: config) for _ in range(count)]
        self.pages = [OpenInferencePages(repository) for repository in self.repositories]

    async def ask(self, worker, row, sequence, *, version=None, forwarded=False, **marks):
        name = f"{GRU}/versions/{version}" if version is not None else GRU
        tensor = {"name": "inputs[0]", "datatype": "FP32", "shape": [1, 3], "data": row.tolist()}
        body = {"inputs": [tensor], "parameters": {"sequence_id": sequence, **marks}}
        path = f"/v2/models/{name}/infer"
        request = PageRequest("POST", path, {}, json.dumps(body).encode())
        return await self.answer(worker, request, forwarded)

    async def answer(self, worker, request, forwarded=False):
        request = PageRequest.from_bytes(request.to_bytes())
        request.others, request.is_forwarded = Others(self, worker), forwarded
        return await self.pages[worker].answer(request)

    def close(self):
        for repository in self.repositories:
            repository.close()


class Others:
    """The other workers, as one of them sees them."""

    def __init__(self, group, worker):
        self.group, self.worker = group, worker

    def claim(self, key):
        if self.group.owners.setdefault(key, self.worker) != self.worker:
            raise ServiceError("session_exists", "")

    def release(self, key):
        if self.group.owners.get(key) == self.worker:
            del self.group.owners[key]

    async def forward_page(self, key, request):
        if self.group.owners.get(key, self.worker) == self.worker:
            raise ServiceError("unknown_session", "")
        return await self.group.answer(self.group.owners[key], request, forwarded=True)


def sum_in(reply):
    outputs = json.loads(reply.body)["outputs"]
    return next(output["data"] for output in outputs if output["name"] == "outputs/sum")


ROW = np.ones(3, np.float32)


def run_in_group(gru, scenario, **config):
    group = Group(gru[0], 2, ModelConfig(**config))
    try:
        asyncio.run(scenario(group, group.ask))
    finally:
        group.close()


def test_an_ended_sequence_leaves_nothing(gru):
    async def scenario(group, ask):
        await ask(0, ROW, 1, sequence_start=True)
        await ask(1, ROW, 1)
        assert list(group.owners.values()) == [0]
        await ask(1, ROW, 1, sequence_end=True)
        assert not group.owners
        for worker in (0, 1):
            with pytest.raises(ServiceError, match="with sequence_start"):
                await ask(worker, ROW, 1)
        await ask(1, ROW, 1, sequence_start=True, sequence_end=True)
        assert not group.owners
        with pytest.raises(ServiceError, match="expected 3 FP32 values"):
            await ask(0, ROW[:2], 2, sequence_start=True)
        assert not group.owners, "it never began"

    run_in_group(gru, scenario)


def test_idle_sequences_are_forgotten_and_never_go_on_from_zeros(gru):
    async def scenario(group, ask):
        await ask(0, ROW, 1, sequence_start=True)
        await ask(0, ROW, 2, sequence_start=True)
        await asyncio.sleep(0.06)
        await ask(0, ROW, 3, sequence_start=True)
        assert len(group.owners) == 1
        for worker in (0, 1):
            with pytest.raises(ServiceError, match="idle for"):
                await ask(worker, ROW, 1)

    run_in_group(gru, scenario, session_idle_s=0.05)


def test_two_versions_of_a_model_have_sequences_of_their_own(gru, tmp_path):
    for number in ("0", "1"):
        shutil.copytree(gru[0], tmp_path / number)
    manifest = tmp_path / "1/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 1}))

    async def scenario(group, ask):
        first = sum_in(await ask(0, ROW, 1, version=0, sequence_start=True))
        await ask(1, ROW, 1, version=1, sequence_start=True)
        await ask(1, ROW, 1, version=1, sequence_end=True)
        second = sum_in(await ask(1, ROW, 1, version=0))
        assert second != first, "it went on"
        await ask(1, ROW, 1, version=0, sequence_end=True)
        assert not group.owners

    run_in_group((tmp_path, None), scenario)


def test_a_replaced_model_ends_its_sequences(gru, tmp_path):
    shutil.copytree(gru[0], tmp_path / "e")

    async def scenario(group, ask):
        await ask(0, ROW, 1, sequence_start=True)
        manifest = tmp_path / "e/manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 7}))
        for repository in group.repositories:
            repository.scan()
        with pytest.raises(ServiceError, match=r"another export took the model's place"):
            await ask(0, ROW, 1)
        assert not group.owners
        await ask(1, ROW, 1, sequence_start=True)
        await ask(0, ROW, 1)

    run_in_group((tmp_path / "e", None), scenario)
