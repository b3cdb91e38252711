"""The completion of shells, asked in a real bash; zsh and fish where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bray_core.cli import main
from bray_core.command import make_parser
from bray_core.completion import SHELLS, CompletionPlace, places

PLACES = [
    CompletionPlace("bray", ("train", "trials"), ("-h", "--version"), {}),
    CompletionPlace(
        "bray train", (), ("--seed", "--runtime", "--json"),
        {"--seed": (), "--runtime": ("local", "ray")},
    ),
    CompletionPlace("bray trials", ("list", "show"), ("-h",), {}),
    CompletionPlace("bray trials list", (), ("--json", "--project"), {"--project": ()}),
]  # fmt: skip
ASKED = [
    (["tr"], ["train", "trials"]),
    ([""], ["train", "trials"]),
    (["--v"], ["--version"]),
    (["train", "--"], ["--seed", "--runtime", "--json"]),
    (["train", "--runtime", ""], ["local", "ray"]),
    (["train", "--runtime", "r"], ["ray"]),
    (["train", "--seed", ""], []),
    (["train", "x=1", "--j"], ["--json"]),
    (["train", "car"], []),
    (["trials", "l"], ["list"]),
    (["trials", "list", "--"], ["--json", "--project"]),
    (["trials", "list", "--json", "--p"], ["--project"]),
]


def ask_bash(script: Path, words: list[str]) -> list[str]:
    """Return what bash would offer after `bray` and some words."""
    program = (
        'source "$1"; shift; COMP_WORDS=(bray "$@"); COMP_CWORD=$#; _bray; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-uc", program, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.split()


def ask_zsh(script: Path, words: list[str]) -> list[str]:
    """Return what zsh would offer of the words that it is given, those that begin as the last."""
    program = (
        "compdef() { : }; _files() { : }; "
        "compadd() { shift; print -l -- ${(M)@:#${words[CURRENT]}*} }; "
        'source "$1"; shift; words=(bray "$@"); CURRENT=$#words; PREFIX=${words[-1]}; _bray'
    )
    command = ["zsh", "-fc", program, "zsh", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def ask_fish(script: Path, words: list[str]) -> list[str]:
    """Return what fish itself offers, without files."""
    line = " ".join(["bray", *words])
    program = "source $argv[1]; cd (mktemp -d); complete -C $argv[2]"
    command = ["fish", "--no-config", "-c", program, str(script), line]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(("words", "offered"), ASKED)
def test_zsh_and_fish_offer_what_may_follow(
    tmp_path: Path, shell: str, words: list[str], offered: list[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "bray").write_text(SHELLS[shell](PLACES))
    ask = {"zsh": ask_zsh, "fish": ask_fish}[shell]
    assert sorted(ask(tmp_path / "bray", words)) == sorted(offered)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("words", "offered"), ASKED)
def test_bash_offers_what_may_follow(tmp_path: Path, words: list[str], offered: list[str]) -> None:
    (tmp_path / "bray").write_text(SHELLS["bash"](PLACES))
    assert ask_bash(tmp_path / "bray", words) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_knows_every_installed_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "bray").write_text(capsys.readouterr().out)
    found = list(places(make_parser()))
    assert ask_bash(tmp_path / "bray", [""]) == list(found[0].verbs)
    assert "completion" in found[0].verbs
    assert ask_bash(tmp_path / "bray", ["completion", ""]) == ["bash", "zsh", "fish"]
    assert ask_bash(tmp_path / "bray", ["completion", "--h"]) == ["--help"]
    for place in found:
        assert ask_bash(tmp_path / "bray", [*place.name.split()[1:], "--"]) == [
            option for option in place.options if option.startswith("--")
        ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_its_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "completion" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is written, and not tried")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "shell: unknown 'tcsh'" in capsys.readouterr().err
