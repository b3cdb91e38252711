"""The command with commands of a distribution that these tests make up."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from bray_core import cli
from bray_core.command import whole_number

COMMANDS = """
import sys, time
from pathlib import Path
from bray_core import cli
from bray_core.cli import Command, check_interrupted
from bray_core.errors import ConfigError

def nothing(parser): pass

def options(parser):
    parser.add_argument("overrides", nargs="*", help="settings")
    parser.add_argument("--seed", type=int, default=0, help="of all")

def folder(parser): parser.add_argument("--folder", type=Path)

def wait(parser): parser.add_argument("--forever", action="store_true")

def show(options):
    print(options.seed, options.overrides)
    return 3

def fail(options): raise ConfigError("rate: expected more than 0, got -1")

def stumble(options):
    from mistaken import stumble
    stumble()

def sleep(options):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up")

def save(options):
    from pathlib import Path
    from bray_core.process.held_interrupts import deliver_interrupt, held_interrupts
    with held_interrupts():
        print("ready", flush=True)
        time.sleep(1)
    try:
        deliver_interrupt()
    finally:
        print("saving", flush=True)
        (Path(__file__).parent / "saved").touch()

def note(options):
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt as error:
        error.add_note("while it cleaned up: the disk is full")
        raise

def warn(options):
    error = ConfigError("rate: expected more than 0, got -1")
    error.add_note("while it cleaned up: the disk is full")
    raise error

def hang(options):
    cli._CLEAN_UP_S = 1.0
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        time.sleep(60)

def lose(options):
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        pass  # as in a destructor
    print("lost", flush=True)
    check_interrupted()
    print("never said")

def chat(options):
    for _ in range(100_000):
        print("wörd")
    return 0

def load(options): import bray_demo_slow

def destroy(options):
    class Held:
        def __del__(self):
            print("ready", flush=True)
            time.sleep(60)
    Held()
    time.sleep(60)

def convert(options):
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        raise ImportError("numpy could not be loaded")

def swallow(options):
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        return 0

def end(options):
    import atexit
    atexit.register(lambda: (print("ready", flush=True), time.sleep(60)))
    return 0

noter = Command("demo-note", "fails to clean up", nothing, note)
warner = Command("demo-warn", "fails, and to clean up", nothing, warn)
loader = Command("demo-load", "imports for long", nothing, load)
destroyer = Command("demo-destroy", "is interrupted in a destructor", nothing, destroy)
converter = Command("demo-convert", "makes another error of Ctrl-C", nothing, convert)
swallower = Command("demo-swallow", "ends well in spite of Ctrl-C", nothing, swallow)
ender = Command("demo-end", "takes long to end", nothing, end)
def needs(parser):
    parser.add_argument("what")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


needer = Command("demo-need", "needs one word", needs, show)
shower = Command("demo-show", "shows its arguments", options, show)
failer = Command("demo-fail", "fails", folder, fail)
stumbler = Command("demo-stumble", "has a mistake", nothing, stumble)
sleeper = Command("demo-sleep", "sleeps", nothing, sleep)
hanger = Command("demo-hang", "hangs", nothing, hang)
loser = Command("demo-lose", "loses Ctrl-C", nothing, lose)
chatter = Command("demo-chat", "talks", nothing, chat)
saver = Command("demo-save", "saves", nothing, save)
"""
ENTRIES = """[bray.commands]
demo-show = bray_demo:shower
demo-need = bray_demo:needer
demo-fail = bray_demo:failer
demo-stumble = bray_demo:stumbler
demo-sleep = bray_demo:sleeper
demo-note = bray_demo:noter
demo-warn = bray_demo:warner
demo-hang = bray_demo:hanger
demo-lose = bray_demo:loser
demo-chat = bray_demo:chatter
demo-load = bray_demo:loader
demo-destroy = bray_demo:destroyer
demo-convert = bray_demo:converter
demo-swallow = bray_demo:swallower
demo-end = bray_demo:ender
demo-save = bray_demo:saver
"""
SLOW_MODULE = """
import time
print("ready", flush=True)
try:
    for _ in range(50):
        time.sleep(0.01)  # each is a moment for the signal
except BaseException as error:  # as in the start of a C++ library
    raise ImportError("this module is half loaded") from error
print("loaded", flush=True)
"""


def install(folder: Path, entries: str) -> dict[str, str]:
    """Make a distribution `bray-demo` and return the environment that finds it."""
    (folder / "bray_demo.py").write_text(COMMANDS)
    (folder / "mistaken.py").write_text("def stumble(): {}['rates']\n")  # a user's
    info = folder / "bray_demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bray-demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    environment = {key: value for key, value in os.environ.items() if key != "BRAY_DEBUG"}
    return {**environment, "PYTHONPATH": str(folder)}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return install(tmp_path, ENTRIES)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bray_core.cli", *arguments]


def bray(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(environment, command(*arguments))


def ended(environment: dict[str, str], words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def test_help_lists_what_is_installed(environment: dict[str, str]) -> None:
    done = bray(environment, "--help")
    assert done.returncode == 0
    assert "demo-show" in done.stdout
    assert "shows its arguments" in done.stdout


def test_a_commands_help_shows_the_defaults_that_there_are(environment: dict[str, str]) -> None:
    shown = bray(environment, "demo-show", "--help").stdout
    assert "of all (default: 0)" in shown
    assert "settings\n" in shown


def test_help_takes_as_long_as_a_few_empty_interpreters(environment: dict[str, str]) -> None:
    """Of a core: seconds on the wall say how busy the machine is."""

    def spent_s(arguments: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(arguments, env=environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    rounds = [
        spent_s(command("--help")) / spent_s([sys.executable, "-c", "import argparse"])
        for _ in range(4)
    ]
    assert min(rounds) < 12, "it is 3 to 5; torch alone would be 60"


def test_version(environment: dict[str, str]) -> None:
    done = bray(environment, "--version")
    assert done.returncode == 0
    assert re.match(r"bray(-core)? 0\.", done.stdout), "the umbrella, where it is installed"


def test_a_command_gets_its_options_and_gives_the_exit_code(environment: dict[str, str]) -> None:
    done = bray(environment, "demo-show", "a=1", "--seed", "2", "b.c=x")
    assert done.stdout.strip() == "2 ['a=1', 'b.c=x']"
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo-shwo"], "command: unknown 'demo-shwo', did you mean 'demo-show'?"),
        (["--verison"], "unknown argument '--verison', did you mean '--version'?"),
        (["demo-show", "--sed", "1"], "unknown argument '--sed', did you mean '--seed'?"),
        (["demo-show", "--sed=1"], "unknown argument '--sed=1', did you mean '--seed'?"),
        (["demo-show", "--seed", "x"], "--seed: expected a whole number, got 'x'"),
        (["demo-show", "--seed"], "--seed: no value\n"),
        (["demo-show", "a=1", "=2"], "'=2': expected key=value, got no key\n"),
        (["demo-fail", "--folder", ""], "--folder: expected a path, got ''\n"),
        (["demo-fail", "extra"], "unknown argument 'extra'"),
        ([], "command: missing: expected one of bench, "),
        (["demo-need"], "what: missing\n"),
    ],
)
def test_a_wrong_call_names_the_closest(
    environment: dict[str, str], arguments: list[str], message: str
) -> None:
    done = bray(environment, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert "--help" in done.stderr.splitlines()[-1]
    assert not done.stdout


def test_an_error_of_ours_is_one_line(environment: dict[str, str]) -> None:
    done = bray(environment, "demo-fail")
    assert done.returncode == 2
    assert done.stderr == "error: rate: expected more than 0, got -1\n"


def test_a_mistake_in_code_of_a_user_is_one_line_that_says_where(
    environment: dict[str, str],
) -> None:
    done = bray(environment, "demo-stumble")
    assert done.returncode == 2
    assert done.stderr == (
        "error: your code raised KeyError: 'rates' (mistaken.py, line 1, in stumble): "
        "BRAY_DEBUG=1 shows the whole traceback, as the bray.log of a trial does\n"
    )


@pytest.mark.parametrize("name", ["fail", "stumble"])
def test_debug_shows_where_it_came_from(environment: dict[str, str], name: str) -> None:
    done = bray({**environment, "BRAY_DEBUG": "1"}, f"demo-{name}")
    assert "Traceback" in done.stderr
    assert f"in {name}" in done.stderr


def interrupt(
    environment: dict[str, str],
    name: str,
    number: int = signal.SIGINT,
    program: list[str] | None = None,
) -> tuple[int, bytes, bytes]:
    """Send a signal to a command that is ready; return its exit code and what it wrote after."""
    words = command(name) if program is None else [*program, name]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_cleans_up(environment: dict[str, str], number: int) -> None:
    done = interrupt(environment, "demo-sleep", number)
    assert done == (130, b"cleaned up\n", b"stopped\n")


@contextmanager
def in_a_terminal_that_closes(
    environment: dict[str, str], name: str, first: bytes
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a terminal that closes once the command has written something there."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command(name), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        assert os.read(ours, len(first)) == first
        os.close(ours)
        yield process


@pytest.mark.usefixtures("terminal")
def test_a_command_whose_terminal_closes_cleans_up(environment: dict[str, str]) -> None:
    with in_a_terminal_that_closes(environment, "demo-save", b"ready") as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 130
    assert (Path(environment["PYTHONPATH"]) / "saved").exists()


def test_a_command_goes_on_whose_terminal_closes_without_a_signal(
    environment: dict[str, str],
) -> None:
    """Such as one in the background of a shell that has ended."""
    with in_a_terminal_that_closes(environment, "demo-chat", b"w") as process:
        assert process.wait(30) == 0


def test_what_failed_while_a_command_cleaned_up_is_said(environment: dict[str, str]) -> None:
    noted = "while it cleaned up: the disk is full\n"
    assert interrupt(environment, "demo-note") == (130, b"", f"{noted}stopped\n".encode())
    done = bray(environment, "demo-warn")
    assert (done.returncode, done.stderr) == (
        2,
        f"error: rate: expected more than 0, got -1\n{noted}",
    )


def test_a_command_that_does_not_end_cleaning_up_is_ended(environment: dict[str, str]) -> None:
    start = time.monotonic()
    code, _, errors = interrupt(environment, "demo-hang")
    assert (code, errors) == (130, b"stopped by force: cleaning up took too long\n")
    assert time.monotonic() - start < 8


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_import_is_not_torn_by_a_signal(
    environment: dict[str, str], tmp_path: Path, number: int
) -> None:
    (tmp_path / "bray_demo_slow.py").write_text(SLOW_MODULE)
    assert interrupt(environment, "demo-load", number) == (130, b"loaded\n", b"stopped\n")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", ["bray_core.cli", "bray_core.entry"])
def test_before_a_command_begins_a_signal_ends_it_at_once(
    tmp_path: Path, number: int, where: str
) -> None:
    """Such as while the modules of all commands are loaded."""
    environment = install(tmp_path, ENTRIES + "demo-slow = bray_demo_slow:absent\n")
    (tmp_path / "bray_demo_slow.py").write_text(SLOW_MODULE.replace("range(50)", "range(5000)"))
    main = f"import sys; from {where} import main; sys.exit(main())"
    assert interrupt(environment, "demo-show", number, [sys.executable, "-c", main]) == (
        130,
        b"",
        b"stopped\n",
    )


@pytest.mark.parametrize("name", ["demo-destroy", "demo-convert", "demo-swallow", "demo-end"])
def test_a_signal_is_one_line_wherever_it_comes(environment: dict[str, str], name: str) -> None:
    assert interrupt(environment, name) == (130, b"", b"stopped\n")


def test_the_command_begins_with_next_to_nothing_loaded() -> None:
    """Until its `main` Ctrl-C is Python's: a traceback."""
    script = "import sys; before = set(sys.modules)\n{}\nprint(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", script.format("import bray_core.entry")],
        capture_output=True,
        text=True,
        check=True,
    )
    others = {name.split(".")[0] for name in done.stdout.split()} - {"bray_core"}
    assert others <= {"__future__", "importlib", "warnings", "_warnings"}


def test_handlers_are_given_back_to_a_program_that_calls_it(environment: dict[str, str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ] == before


def test_an_interrupt_that_got_lost_is_found(environment: dict[str, str]) -> None:
    assert interrupt(environment, "demo-lose") == (130, b"lost\n", b"stopped\n")


def test_a_reader_that_leaves_is_no_traceback(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        command("demo-chat"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.wait(timeout=30)


def by_entry(
    environment: dict[str, str], redirection: str, name: str = "demo-chat"
) -> subprocess.CompletedProcess[str]:
    """Run a command that prints, as its script does, with an output that a shell has prepared."""
    program = "from bray_core.entry import main; raise SystemExit(main())"
    words = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", program]
    return ended(environment, [*words, name])


def test_an_output_without_some_characters_gets_their_numbers(environment: dict[str, str]) -> None:
    done = by_entry({**environment, "PYTHONIOENCODING": "ascii"}, "")
    assert (done.returncode, done.stdout[:8], done.stderr) == (0, "w\\xf6rd\n", "")


def test_an_output_that_is_closed_takes_anything(environment: dict[str, str]) -> None:
    done = by_entry(environment, ">&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["demo-chat", "--help", "--version"])
def test_a_full_disk_is_no_traceback(environment: dict[str, str], name: str) -> None:
    buffered = {key: value for key, value in environment.items() if key != "PYTHONUNBUFFERED"}
    done = by_entry(buffered, "> /dev/full", name)
    assert done.returncode == 2
    assert done.stderr == (
        "error: [Errno 28] No space left on device: make room, or write elsewhere\n"
    )


def test_a_broken_command_does_not_take_the_others_along(tmp_path: Path) -> None:
    environment = install(tmp_path, ENTRIES + "demo-bad = bray_absent:nothing\n")
    done = bray(environment, "demo-show")
    assert done.returncode == 3
    assert "warning: command 'demo-bad' (bray_absent:nothing) is broken: No module" in done.stderr


def test_every_installed_command_is_complete() -> None:
    for entry in entry_points(group="bray.commands"):
        loaded = entry.load()
        assert loaded.name == entry.name
        assert loaded.help


@pytest.mark.parametrize("text", ["1000000", "1e6", "1_000_000", "1000000.0"])
def test_a_whole_number_may_be_written_with_an_exponent(text: str) -> None:
    assert whole_number(text) == 1_000_000


@pytest.mark.parametrize("text", ["1.5", "1e-1", "inf", "nan", "many", ""])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
        whole_number(text)
