"""`bray pack`, and what takes the file that it writes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import bray
from bray.trained.model_card import model_card
from bray_core.cli import main
from bray_core.errors import ConfigError, ExportError, NotFoundError
from bray_model.export.export_folder import find_exports
from bray_model.export_files.agent_file import pack_agent, read_index


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of CartPole that was trained for a moment."""
    folder = tmp_path_factory.mktemp("project") / "cartpole"
    settings = {"steps_per_replay": 128, "hidden": [4], "num_envs": 2}
    bray.train("CartPole-v1", "ppo", frames=256, episodes=2, trial=folder, **settings).close()
    return folder


@pytest.fixture(scope="module")
def agent(trial: Path) -> Path:
    path = trial.parent / "agent.bray"
    assert main(["pack", str(trial), str(path)]) == 0
    return path


def test_a_packed_agent_plays_as_its_trial_does(trial: Path, agent: Path) -> None:
    observation = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
    with bray.load(trial) as one, bray.load(agent) as other:
        assert other.act(observation) == one.act(observation)
        assert other.evaluate(2).returns == one.evaluate(2).returns
        folder = other._folder
        assert folder.is_dir()
    assert not folder.exists(), "what was unpacked is gone once it is closed"


def test_watch_takes_it_and_writes_beside_it(
    agent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["watch", str(agent)]) == 0
    assert "over 1 episode\n" in capsys.readouterr().out
    assert (agent.parent / "watch.gif").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pack", "TRIAL", "FILE/agent.bray"], "file: cannot write into"),
        (["export", "TRIAL", "--output", "FILE/export"], "output: cannot write into"),
        (["watch", "TRIAL", "--save", "FILE/x.gif"], "save: cannot write into"),
        (["new", "FILE/walker"], "name: cannot write into"),
        (["plan", "cartpole", "--save", "FILE/x.json"], "--save: cannot write into"),
        (["search", "cartpole", "epochs=1..2", "--folder", "FILE"], "folder: cannot write into"),
    ],
)
def test_where_nothing_can_be_written_is_told_before_anything_is_done(
    trial: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    names = {"TRIAL": str(trial), "FILE": str(file)}
    given = [names.get(word, word.replace("FILE", str(file))) for word in words]
    assert main(given) == 2
    assert f"error: {told}" in capsys.readouterr().err


def test_the_card_says_what_it_is(trial: Path, agent: Path) -> None:
    with zipfile.ZipFile(agent) as archive:
        card = archive.read("card.md").decode()
        assert archive.read("settings.yaml") == (trial / "config.yaml").read_bytes()
    result = json.loads((trial / "result.json").read_text())
    for words in (
        "# ppo on CartPole-v1", "| environment | CartPole-v1 |", "| frames of the trial | 256 |",
        f"mean return {result['evaluation_return']:.6g} ±", "over 2 episodes, version 2",
        "| goal reached | no |", "| torch | ",
        "| policy | version 2; exported with bray-model", "steps_per_replay: 128",
    ):  # fmt: skip
        assert words in card
    launch = json.loads(next(trial.glob("launches/*/launch.json")).read_text())
    for hidden in (launch["host"], str(trial)):
        assert hidden not in card, "the card is given away"


def test_the_card_of_a_bare_export_says_less(trial: Path) -> None:
    export = find_exports(trial)[0]
    card = model_card(export, {"policy": export})
    assert card.startswith("# Policy policy\n")
    assert "Evaluation" not in card


def test_the_command_names_checksum_and_what_to_try(
    trial: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "agent.bray"
    assert main(["pack", str(trial), str(file), "--policy", "policy"]) == 0
    out = capsys.readouterr().out
    assert f"wrote {file}: policy, " in out
    assert f"try: bray serve {file}" in out
    assert main(["pack", str(trial), str(file)]) == 2
    assert "exists already: name another file" in capsys.readouterr().err
    assert main(["pack", str(trial), str(tmp_path / "b"), "--policy", "runner"]) == 2
    assert "has no export of 'runner'" in capsys.readouterr().err
    assert main(["pack", str(tmp_path / "nothing"), str(tmp_path / "b")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"environment": "evil:Game"}, r"names code \(evil:Game\), which a packed agent does not"),
        ({"environment": "CartPole-v1", "wrappers": ["evil.py:Wrap"]}, r"evil\.py:Wrap\)"),
        (None, "says none: name one"),
        ({"environment": 7}, "environment"),
        ({"rules": "none"}, "rules"),
    ],
)
def test_code_that_a_file_names_is_not_run(
    trial: Path, tmp_path: Path, environment: dict[str, object] | None, words: str
) -> None:
    path = tmp_path / "agent.bray"
    pack_agent(path, {"policy": find_exports(trial)[0]}, {}, environment)
    with bray.load(path) as agent:
        with pytest.raises(ConfigError, match=words):
            agent.evaluate(1)
        assert agent.evaluate(1, environment="CartPole-v1").mean > 0


def test_other_files_are_refused(tmp_path: Path, trial: Path) -> None:
    (tmp_path / "agent.bray").write_bytes(b"PK")
    with pytest.raises(ExportError, match="expected an agent file that `bray pack` wrote"):
        bray.load(tmp_path / "agent.bray")
    with pytest.raises(NotFoundError, match="no export of 'runner'"):
        bray.load(trial, policy="runner")


def test_the_environment_of_a_trial_is_packed(agent: Path) -> None:
    assert read_index(agent).environment == {"environment": "CartPole-v1"}
