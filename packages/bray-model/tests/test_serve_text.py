"""`bray serve` with a language model, as a process; programs ask it with official clients."""

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

import openai
import pytest
import torch
from byte_pair_model import byte_pair_model

from bray_core.cli import main
from bray_core.errors import NotFoundError
from bray_model.serving.text_folders import find_text_folder
from bray_model.serving.text_serving import FolderFollower, weights_stamp
from bray_model.text.text_folder import model_name
from bray_model.text.text_model import TextModel

HELLO = [{"role": "user", "content": "the cat"}]


@contextmanager
def serving(*arguments, **environment):
    command = [sys.executable, "-m", "bray_core.cli", "serve", *map(str, arguments)]
    process = subprocess.Popen(
        [*command, "--tcp-port=0", "--http-port=0", "--threads=1"],
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    with byte_pair_model() as model:
        model.save(folder)
    return folder


def test_a_path_is_told_to_be_a_language_model(folder, tmp_path):
    assert find_text_folder(folder) == folder
    assert model_name(folder) == "tiny"
    assert find_text_folder(tmp_path) is None
    assert find_text_folder(tmp_path / "absent") is None
    for name in ("hero", "critic"):
        shutil.copytree(folder, tmp_path / "models" / name / "huggingface")
        if name == "hero":
            found = find_text_folder(tmp_path)
            assert found == tmp_path / "models/hero/huggingface"
            assert model_name(found) == "hero"
    with pytest.raises(NotFoundError, match="critic, hero: choose one with --model"):
        find_text_folder(tmp_path)
    assert find_text_folder(tmp_path, "critic") == tmp_path / "models/critic/huggingface"


def test_weights_that_were_written_while_it_loaded_are_served(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "moved")
    loaded = weights_stamp(copied)
    with TextModel.load(copied) as model:
        with byte_pair_model(seed=2) as other:
            other.save(tmp_path / "new")
        (tmp_path / "new/model.safetensors").replace(copied / "model.safetensors")
        follower = FolderFollower(copied, model, loaded)
        deadline = time.monotonic() + 60
        while not model.version and time.monotonic() < deadline:
            time.sleep(0.1)
        follower.close()
        assert model.version == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--workers=2", "--workers: expected to be left out"),
        ("--record-share=0.5", "--record-share: expected to be left out"),
        ("--precision=fp8", "precision"),
        ("--context-length=99999", "context_length=99999 exceeds"),
    ],
)
def test_options_that_do_not_go_with_a_language_model(folder, capsys, change, words):
    assert main(["serve", str(folder), "--tcp-port=0", "--http-port=0", change]) == 2
    assert words in capsys.readouterr().err


def test_a_tokenizer_that_does_not_fit_is_refused(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "wrong")
    path = tmp_path / "wrong" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 500, "content": "<more>"})
    path.write_text(json.dumps(content))
    code = main(["serve", str(tmp_path / "wrong"), "--tcp-port=0", "--http-port=0"])
    assert code == 2
    assert "the tokenizer does not fit the model" in capsys.readouterr().err


def test_a_terminal_shows_what_is_loaded(folder, tmp_path, capsys, monkeypatch):
    shutil.copytree(folder, tmp_path / "large")
    (tmp_path / "large" / "tokenizer.json").write_text("broken")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["serve", str(tmp_path / "large"), "--tcp-port=0", "--http-port=0"]) == 2
    assert capsys.readouterr().err.startswith(f"loading large from {tmp_path / 'large'}\n")


@pytest.mark.long
def test_serve_answers_the_official_client_follows_the_folder_and_drains(folder, tmp_path):
    served = tmp_path / "served"
    shutil.copytree(folder, served)
    options = ["--model=gpt-mine", "--token-env=TOKEN", "--max-requests=50", "--admin-port=0"]
    with serving(served, *options, TOKEN="secret") as (process, text):
        assert text.startswith(f"serving gpt-mine from {served}\nlistening on tcp://")
        address = re.search(r"http://127.0.0.1:\d+", text)[0]
        curl = text.splitlines()[-1].removeprefix("try: ")
        if shutil.which("curl"):
            reply = subprocess.run(
                curl,
                shell=True,
                capture_output=True,
                env={**os.environ, "TOKEN": "secret"},
                check=True,
            )
            assert json.loads(reply.stdout)["object"] == "chat.completion"
        stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong")
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with openai.OpenAI(base_url=f"{address}/sessions/a/v1", api_key="secret") as client:
            assert [one.id for one in client.models.list()] == ["gpt-mine"]
            reply = client.chat.completions.create(model="gpt-mine", messages=HELLO, max_tokens=8)
            assert reply.system_fingerprint == "version-0"
            client.post("/end", body={"reward": 1}, cast_to=object)
            with TextModel.load(served) as changed:
                module = changed.new_module()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter += 0.01
                module.save_pretrained(served)
            while reply.system_fingerprint != "version-1":
                reply = client.chat.completions.create(
                    model="gpt-mine", messages=HELLO, max_tokens=1
                )
            page = client._client.get(
                f"{address}/metrics", headers={"Authorization": "Bearer secret"}
            )
            for name in ("chat_sessions", "chat_episodes_total", "chat_completion_tokens_total"):
                assert f"bray_{name}" in page.text
            with client.chat.completions.create(
                model="gpt-mine", messages=HELLO, max_tokens=100, stream=True,
                extra_body={"ignore_eos": True},
            ) as stream:  # fmt: skip
                first = next(iter(stream))
                process.send_signal(signal.SIGTERM)
                rest = list(stream)
            assert first.choices[0].delta.role == "assistant"
            assert rest[-1].choices[0].finish_reason == "length", "the drain let it end"
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, rest, errors) == (0, "stopped\n", "")


PROGRAM = """
import OpenAI from "openai";
const client = new OpenAI();
const messages = [{ role: "user", content: "the cat" }];
for (let turn = 0; turn < 3; turn++) {
  const reply = await client.chat.completions.create(
    { model: "tiny", messages, temperature: 1.0, max_tokens: 8 });
  messages.push(reply.choices[0].message, { role: "user", content: "and then" });
}
const stream = await client.chat.completions.create(
  { model: "tiny", messages, max_tokens: 8, stream: true,
    stream_options: { include_usage: true } });
let text = "", usage = null;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
let code = null;
try {
  await client.chat.completions.create({ model: "other", messages });
} catch (error) {
  code = [error instanceof OpenAI.NotFoundError, error.code];
}
const end = await client.post("/end", { body: { reward: [0, 0, 0, 1] } });
console.log(JSON.stringify({ turns: messages.length, text, usage, code, end }));
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_program_with_the_official_npm_client_is_unchanged(folder, tmp_path):
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")
    program = tmp_path / "program.mjs"
    program.write_text(PROGRAM)
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "openai"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install openai: {installed.stderr[-300:]}")
    with serving(folder) as (_, text):
        address = re.search(r"http://127.0.0.1:\d+", text)[0]
        environment = {
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": f"{address}/sessions/js/v1",
            "OPENAI_API_KEY": "none",
        }
        done = subprocess.run(
            [str(Path(shutil.which("node"))), str(program)],
            capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["turns"] == 7
    assert said["usage"]["completion_tokens"] <= 8
    assert said["code"] == [True, "model_not_found"]
    assert said["end"] | {"tokens": 0} == {
        "session": "js", "reward": 1, "turns": 4, "segments": 1, "tokens": 0
    }  # fmt: skip
