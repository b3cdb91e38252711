"""`bray trials` on real trial folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bray_core import cli
from bray_core.files.trial_folders import newest_launch
from bray_core.trials.experiment import Experiment

Bray = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bray:
    """`bray trials …` on the project in `tmp_path`: exit code, output, errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["trials", *arguments, "--project", str(tmp_path)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def make(
    project: Path, name: str, result: dict[str, object] | None = None, **config: object
) -> Path:
    experiment = Experiment.open(project, name, config)
    if result is not None:
        (experiment.path / "result.json").write_text(json.dumps(result))
    experiment.close()
    return experiment.path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[int]:
    """A trial `busy` that another process runs; its process id."""
    script = (
        "import sys; from pathlib import Path; from bray_core import Experiment; "
        "Experiment.open(Path(sys.argv[1]), 'busy'); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid
        process.kill()


def test_list_shows_state_and_figures(tmp_path: Path, bray: Bray, running: int) -> None:
    make(tmp_path, "done", {"reached": True, "evaluation_return": 481.5, "frames": 4096})
    make(tmp_path, "half")
    launch = newest_launch(tmp_path / "half")
    assert launch is not None
    line = '{"frames": 1234, "values": {"actor/episode_return": 17.5}}\n'
    (launch / "metrics.jsonl").write_text(line)
    (make(tmp_path, "odd") / "result.json").write_text("{")
    code, out, _ = bray("list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["busy"].split()[1] == "running"
    for part in ("finished", "4,096", "481.5", "reached"):
        assert part in lines["done"]
    for part in ("1,234", "17.5"):
        assert part in lines["half"]
    assert "result.json: not JSON" in lines["odd"]


def test_list_of_an_empty_or_absent_project(tmp_path: Path, bray: Bray) -> None:
    assert bray("list")[1] == f"no trials in {tmp_path}\n"
    assert cli.main(["trials", "list", "--project", str(tmp_path / "absent")]) == 2


def test_show_tells_what_a_trial_holds_and_how_launches_ended(tmp_path: Path, bray: Bray) -> None:
    path = make(tmp_path, "one", {"frames": 7})
    Experiment.open(tmp_path, "one").close(ValueError("[bold]it broke[/bold]"))
    (path / "episodes" / "a.episode").write_bytes(b"x" * 1500)
    (path / "best.json").write_text('{"version": 3, "evaluation_return": 9.5, "frames": 5}')
    code, out, _ = bray("show", "one")
    assert code == 0
    for part in (
        f"{path}: failed", "episodes/", "1 files, 1.5 kB", "version 3: mean return 9.5",
        "failed: ValueError: [bold]it broke[/bold]", "finished", str(os.getpid()),
    ):  # fmt: skip
        assert part in out, out
    assert bray("show", str(path))[1] == out, "by its folder as well"


def test_compare_shows_what_differs_and_all_figures(tmp_path: Path, bray: Bray) -> None:
    make(tmp_path, "a", {"frames": 10}, seed=1, trainer={"rate": 0.1, "epochs": 3})
    make(tmp_path, "b", {"frames": 20}, seed=2, trainer={"rate": 0.2, "epochs": 3})
    code, out, _ = bray("compare", "a", "b")
    assert code == 0
    rows = {" ".join(line.split()[:2]): line.split()[2:] for line in out.splitlines()}
    assert rows["setting seed"] == ["1", "2"]
    assert rows["setting trainer.rate"] == ["0.1", "0.2"]
    assert rows["figure frames"] == ["10", "20"]
    assert "epochs" not in out
    assert "package" not in out
    code, _, err = bray("compare", "a")
    assert (code, "expected two trials or more" in err) == (2, True)


def test_compare_shows_commits_and_changes_that_differ(tmp_path: Path, bray: Bray) -> None:
    code = tmp_path / "code"
    code.mkdir()
    script = (
        "import sys; from pathlib import Path; from bray_core import Experiment; "
        "Experiment.open(Path(sys.argv[1]), sys.argv[2]).close()"
    )

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=code)

    def launched(name: str, content: str) -> None:
        (code / "game.py").write_text(content)
        subprocess.run([sys.executable, "-c", script, str(tmp_path), name], cwd=code, check=True)

    git("init", "-q")
    (code / "game.py").write_text("0\n")
    git("add", "game.py")
    git("commit", "-qmone")
    for name, content in (("a", "1\n"), ("b", "2\n"), ("c", "2\n")):
        launched(name, content)
    _, out, _ = bray("compare", "a", "b")
    row = next(line for line in out.splitlines() if "launch changes.diff" in line)
    assert row.count(" lines, sha256 ") == 2
    assert "launch commit" not in out, "it is the same"
    assert "changes.diff" not in bray("compare", "b", "c")[1]
    git("commit", "-qamtwo")
    launched("d", "2\n")
    _, out, _ = bray("compare", "a", "d")
    rows = {" ".join(line.split()[:2]): line.split()[2:] for line in out.splitlines()}
    assert len(rows["launch commit"]) == 2
    assert rows["launch is_changed"] == ["yes", "no"]


def test_rm_asks_and_refuses_what_runs(tmp_path: Path, bray: Bray, running: int) -> None:
    make(tmp_path, "one")
    code, _, err = bray("rm", "one")
    assert code == 2
    assert "--yes: missing: this deletes" in err
    assert (tmp_path / "one").exists()
    code, _, err = bray("rm", "one", "busy", "--yes")
    assert (code, "busy: is running: stop it first" in err) == (2, True)
    assert (tmp_path / "one").exists(), "all or none"
    (tmp_path / "link").symlink_to(tmp_path / "one")
    code, _, err = bray("rm", "link", "--yes")
    assert (code, f"link: is a link to {tmp_path / 'one'}: delete that" in err) == (2, True)
    assert bray("rm", "one", "--yes")[0] == 0
    assert not (tmp_path / "one").exists()


def test_clone_makes_a_trial_to_train(tmp_path: Path, bray: Bray) -> None:
    make(tmp_path, "one", seed=3)
    code, out, _ = bray("clone", "one", "two")
    assert code == 0
    assert f"bray train {tmp_path / 'two'}" in out
    assert (tmp_path / "two" / "config.yaml").read_text() == "seed: 3\n"


def test_prune_says_first_and_then_deletes(tmp_path: Path, bray: Bray, running: int) -> None:
    path = make(tmp_path, "one", keep={"episodes": 2})
    for number in range(4):
        (path / "episodes" / f"{number}.episode").write_bytes(b"x" * 500)
    assert bray("prune")[1] == f"{path}: 2 files, 1 kB to delete: add --yes\n"
    assert len(list((path / "episodes").iterdir())) == 4
    assert "3 files" in bray("prune", "one", "--episodes", "1", "--yes")[1]
    assert [file.name for file in (path / "episodes").iterdir()] == ["3.episode"]
    code, _, err = bray("prune", "one", "--episodes", "0")
    assert (code, "episodes: expected 1 or more" in err) == (2, True)
    assert bray("prune", "busy", "--yes") == (0, "nothing to delete\n", "")


@pytest.mark.parametrize(
    "keep", [{"of_a_later_bray": 1}, [3], "all"], ids=["unknown", "list", "word"]
)
def test_a_trial_that_cannot_be_pruned_keeps_no_other_from_it(
    tmp_path: Path, bray: Bray, keep: Any
) -> None:
    make(tmp_path, "broken", keep=keep)
    index = make(tmp_path, "garbled") / "models" / "pole" / "versions" / "index.json"
    index.parent.mkdir(parents=True)
    index.write_bytes(b"\xff\x00")
    path = make(tmp_path, "one")
    for number in range(3):
        (path / "episodes" / f"{number}.episode").write_bytes(b"x")
    code, out, err = bray("prune", "--episodes", "1", "--versions", "1")
    assert code == 2
    assert f"{path}: 2 files" in out
    assert f"error: {tmp_path / 'broken'}" in err
    assert "index.json: not an index of versions" in err


def test_an_unknown_trial_or_verb_names_the_closest(tmp_path: Path, bray: Bray) -> None:
    make(tmp_path, "cartpole")
    code, _, err = bray("show", "cartpol")
    assert (code, "did you mean 'cartpole'" in err) == (2, True)
    with pytest.raises(SystemExit, match="2"):
        bray("shwo")


BROKEN = {
    "cut": b'{"format": 1, "beg', "binary": b"\xff\xfe\x00", "list": b"[1]", "deep": b"[" * 100_000,
    "digits": b'{"format": 1, "pid": ' + b"9" * 5000 + b"}", "escape": b'"\x1b[2J"',
    "strange time": b'{"began_s": 1e300}',
}  # fmt: skip


@pytest.mark.parametrize("file", ["launch.json", "result.json"])
@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_one_broken_trial_is_told_and_hides_no_other(
    tmp_path: Path, bray: Bray, file: str, data: bytes
) -> None:
    make(tmp_path, "good", {"evaluation_return": 481.5})
    broken = make(tmp_path, "broken")
    launch = newest_launch(broken)
    assert launch is not None
    place = launch / file if file == "launch.json" else broken / file
    good = json.loads((launch / "launch.json").read_bytes())
    if data.startswith(b'{"began') and file == "launch.json":
        data = json.dumps(good | json.loads(data)).encode()
    place.write_bytes(data)
    code, out, _ = bray("list")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert (code, "481.5" in lines["good"]) == (0, True)
    if not (file == "result.json" and data.startswith(b'{"began')):
        assert f"unreadable {place}"[:30] in " ".join(lines["broken"].split())
    code, out, _ = bray("compare", "good", "broken")
    assert (code, "481.5" in out) == (0, True)
    for arguments in (["show", "broken"], ["prune"], ["show", "good"]):
        assert bray(*arguments)[0] == 0
    assert "\x1b" not in out


def test_pipes_and_foreign_files_in_a_trial_end_no_listing(tmp_path: Path, bray: Bray) -> None:
    make(tmp_path, "good", {"evaluation_return": 481.5})
    for name in ("launch.json", "metrics.jsonl", "result.json", "config.yaml"):
        path = make(tmp_path, f"pipe-{name}")
        launch = newest_launch(path)
        assert launch is not None
        place = launch / name if name in ("launch.json", "metrics.jsonl") else path / name
        place.unlink(missing_ok=True)
        os.mkfifo(place)
    (tmp_path / "good" / "launches" / "zzz.txt").write_text("no launch")
    (tmp_path / os.fsdecode(b"\xff\x1b[2J") / "launches").mkdir(parents=True)
    code, out, _ = bray("list")
    assert code == 0
    assert out.count("got a named pipe") == 3, "settings are not listed"
    assert "481.5" in out
    assert "\x1b" not in out
    code, out, _ = bray("compare", "good", "pipe-config.yaml")
    assert (code, "config.yaml: expected a regular file" in out) == (0, True)
    code, _, err = bray("prune", "--yes")
    assert (code, "config.yaml: expected a regular file" in err) == (2, True)


def test_a_name_is_on_one_line_as_it_is(tmp_path: Path, bray: Bray) -> None:
    path = make(tmp_path, "one", keep={"episodes": 1})
    for number in range(3):
        (path / "episodes" / f"{number}.episode").write_bytes(b"x")
    odd = "b[red]\nw\x1b[2J"
    path.rename(tmp_path / odd)
    other = make(tmp_path, "two")
    for arguments in (
        ["list"], ["show", odd], ["compare", odd, "two"], ["note", odd], ["prune"], ["rm", odd],
        ["rm", odd, "--yes"],
    ):  # fmt: skip
        code, out, err = bray(*arguments)
        assert (code, "b[red]\\nw\\x1b[2J" in out + err) == (2 * (arguments == ["rm", odd]), True)
        assert "\x1b" not in out + err
    (other / "config.yaml").write_text("[")
    other.rename(tmp_path / "\x1b[2J")
    assert "\x1b" not in bray("prune")[2]


def test_a_reader_that_leaves_ends_it_as_other_commands(tmp_path: Path) -> None:
    make(tmp_path, "one")
    reader, writer = os.pipe()
    os.close(reader)
    words = ["-m", "bray_core.cli", "trials", "show", "one", "--project", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, b"")


def test_the_return_shown_is_a_mean_of_a_hundred_episodes(tmp_path: Path, bray: Bray) -> None:
    make(tmp_path, "one", {"evaluation_return": 30.25})
    launch = newest_launch(tmp_path / "one")
    assert launch is not None
    windows = [(1, 90, 50.0), (2, 99, 50.0), (3, 100, 261.0)]
    (launch / "metrics.jsonl").write_text(
        "\n".join(
            json.dumps({"frames": n, "values": {"actor/episodes": e, "actor/episode_return": r}})
            for n, e, r in windows
        )
    )
    out = bray("list")[1]
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["one"]]
    assert "return (mean of 100 episodes)" in out
    assert ("52.11" in line, "30.25" in line, "261" in line) == (True, True, False)
    assert "52.11" in bray("show", "one")[1]
    Experiment.open(tmp_path, "one").close()  # a launch that has played nothing yet
    assert "52.11" in bray("list")[1]


def test_list_show_and_compare_as_json(tmp_path: Path, bray: Bray) -> None:
    make(tmp_path, "a", {"frames": 10, "evaluation_return": float("inf")}, trainer={"rate": 0.1})
    make(tmp_path, "b", {"frames": 20}, trainer={"rate": 0.2})
    (make(tmp_path, "odd") / "result.json").write_text("{")
    (tmp_path / "a" / "episodes" / "one").write_bytes(b"12345")
    listed = {one["name"]: one for one in json.loads(bray("list", "--json")[1])}
    assert listed["b"]["figures"] == {"frames": 20}
    assert listed["b"]["state"] == "finished"
    assert "result.json: not JSON" in listed["odd"]["problem"]
    shown = json.loads(bray("show", "a", "--json")[1])
    assert shown["folders"]["episodes"] == {"files": 1, "bytes": 5}
    assert shown["launches"][0]["ending"] == "finished"
    assert shown["best"] is None
    found = json.loads(bray("compare", "a", "b", "--json")[1])
    assert [one["settings"]["trainer.rate"] for one in found] == [0.1, 0.2]
    assert json.loads(bray("list", "--json")[1]) == list(listed.values())


def test_no_trials_are_an_empty_list(tmp_path: Path, bray: Bray) -> None:
    assert json.loads(bray("list", "--json")[1]) == []
