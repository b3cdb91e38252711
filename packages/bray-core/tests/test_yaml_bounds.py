"""What a hostile YAML text may cost: a few bytes stand for little, and no text ends in a traceback.

Costs are counted (nodes made, steps of the scanner), never timed.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bray_core.config import load_text, with_overrides
from bray_core.errors import ConfigError, SettingsError
from bray_core.settings import settings_build, settings_tree, yaml_nodes
from bray_core.settings.choice import closest
from bray_core.settings.settings_tree import Value, override, parse, read, unwrap

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, kw_only=True, slots=True)
class Few:
    seed: int = 1
    rate: float = 0.5


def bomb(levels: int, times: int, start: str = "x") -> str:
    """Return lines of which each stands for `times` times what the one before stands for."""
    lines = [f"a0: &a0 {start}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * times)}]")
    return "\n".join(lines)


BOMBS = {
    "lists": bomb(9, 10),
    "deep": bomb(30, 2),
    "settings": "a: &a {x: 1}\n"
    + "\n".join(
        f"{new}: &{new} {{{', '.join(f'k{i}: *{old}' for i in range(9))}}}"
        for old, new in itertools.pairwise("abcdefghi")
    ),
    "keys": bomb(9, 10) + "\n? [*a8, *a8]\n: 1",
    "merge": "a: &a {x: 1}\n"
    + "\n".join(
        f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}"
        for old, new in itertools.pairwise("abcdefghi")
    ),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values are made; more than a bomb may stand for ends the test."""
    count: list[int] = []
    real = settings_tree._Reader.value

    def value(self: Any, node: yaml.Node, depth: int = 0) -> Value:
        count.append(1)
        assert len(count) < 50_000
        return real(self, node, depth)

    monkeypatch.setattr(settings_tree._Reader, "value", value)
    return count


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_few_bytes_stand_for_few_values(text: str, made: list[int]) -> None:
    assert len(text) < 1000
    with pytest.raises(SettingsError, match=r"aliases stand for more than|expected a word before"):
        unwrap(parse(text, "f"))
    with pytest.raises(SettingsError):
        load_text(text, "f", Few)


def test_an_override_is_bounded_alike(made: list[int]) -> None:
    text = "[&a [x, x], " + ", ".join(
        f"&{new} [{', '.join([f'*{old}'] * 20)}]" for old, new in itertools.pairwise("abcdefgh")
    )
    with pytest.raises(ConfigError, match=r"command line: 1:.*aliases stand|aliases stand"):
        with_overrides(Few(), [f"seed={text}]"])
    with pytest.raises(ConfigError, match="nested too deeply"):
        override(Value({}, ""), ".".join("a" * 1000) + "=1", "command line")


def test_anchors_go_on_being_useful() -> None:
    text = "a: &seen [1, 2]\nb: *seen\nc: {d: *seen}\n" + "".join(
        f"k{i}: *seen\n" for i in range(300)
    )
    found = unwrap(parse(text, "f"))
    assert found["b"] == found["c"]["d"] == found["k299"] == [1, 2]
    long = "a: [" + ", ".join("1" * 12_000) + "]"
    assert len(unwrap(parse(long, "f"))["a"]) == 12_000, "what is written is no alias"
    with pytest.raises(SettingsError, match=r"f:2:4: .*aliases such as \*seen are not taken"):
        parse("a: &seen 1\nb: *seen", "f", takes_aliases=False)


MERGED = """x-small: &small {hidden: [16], rate: 1}
x-slow: &slow {rate: 2, clip: 3}
a: &whole {<<: *small, rate: 4}
b: {rate: 5, <<: [*small, *slow]}
c: {<<: *whole, <<quoted: 1}
d: {"<<": 6}
"""


def test_settings_are_taken_over_as_yaml_merges_them() -> None:
    assert unwrap(parse(MERGED, "f")) == {
        "a": {"hidden": [16], "rate": 4},
        "b": {"hidden": [16], "rate": 5, "clip": 3},
        "c": {"hidden": [16], "rate": 4, "<<quoted": 1},
        "d": {"<<": 6},
    }
    assert unwrap(parse("x-a: &a {n: 1}\nb: {<<: [*a, {n: 2}]}", "f")) == {"b": {"n": 1}}
    with pytest.raises(SettingsError, match=r"f:1:17: seed: expected a whole number, got 'no'"):
        load_text("x-all: &all {   seed: 'no'}\n<<: *all", "f", Few)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x-a: &a 3\nb: {<<: *a}", r"f:2:5: <<: expected settings, such as \*name, .*got 3"),
        ("x-a: &a {}\nb: {<<: [*a, 3]}", r"f:2:5: <<: expected settings.*got 3"),
        ("x-a: &a {}\nb: {<<: *a, <<: *a}", r"f:2:13: <<: given twice"),
        ("b: &b {<<: *b}", r"nested too deeply, or an anchor that contains itself"),
    ],
)
def test_what_cannot_be_merged_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(text, "f")


@pytest.mark.parametrize("part", ["[", "{a: ", "- ", "? ", "[[{a: ["])
def test_nesting_is_refused_before_the_scanner_has_gone_on(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = []
    real = yaml.SafeLoader.fetch_more_tokens

    def fetch(self: Any) -> Any:
        tokens.append(1)
        return real(self)

    monkeypatch.setattr(yaml.SafeLoader, "fetch_more_tokens", fetch)
    for takes_aliases in (True, False):
        with pytest.raises(SettingsError, match=r"f:1:[0-9]+: not valid YAML: nested too deeply"):
            parse(part * 30_000, "f", takes_aliases=takes_aliases)
    assert len(tokens) < 3000, "it looks 1,024 characters ahead for the colon of a key"


def test_a_text_or_a_file_has_a_length(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("#" * yaml_nodes.MAX_BYTES)
    assert unwrap(read(file)) == {}
    file.write_text("#" * (yaml_nodes.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=r"f\.yaml: expected 262144 bytes at most"):
        read(file)
    with pytest.raises(ConfigError, match="expected 262144 characters at most, got 300000"):
        parse("#" * 300_000, "f")
    with pytest.raises(ConfigError, match="expected a regular file, got a device"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize(
    "text",
    [
        "2001-02-31", "2001-99-99", "2001-01-01T99:00:00", "2001-01-01T00:00:00+99:99",
        "1" * 400, "1" * 5000, "0x" + "f" * 20_000, "0b" + "1" * 200,
        "1:" * 9000 + "1", "1:" * 400 + "1.5", "!!int x", "!!float x", "!!bool maybe",
        "!!timestamp x", "!!binary é", "!!null x", "!!python/name:os.system x", "0x_", "._",
        "!!int 1_e", "1e999", "1.0e+999", "-1.0e+400",
    ],
)  # fmt: skip
def test_a_scalar_that_is_no_value_is_text_that_no_number_takes(text: str) -> None:
    for key in ("seed", "rate"):
        if text == "!!null x":
            continue
        for load in (
            lambda written: load_text(written.replace("=", ": ", 1), "f", Few),
            lambda written: with_overrides(Few(), [written]),
        ):
            with pytest.raises(SettingsError, match=f"{key}: expected a (whole )?number") as caught:
                load(f"{key}={text}")
            assert len(str(caught.value)) < 400, "a long value is not said in full"
    repr(unwrap(parse(f"a: {text}", "f")))


@pytest.mark.parametrize(
    "text",
    ['a: "\\U00110000"', "%YAML 1." + "1" * 5000 + "\n---\na: 1", 'a: "\\uD800"', "a: \ud800"],
)
def test_what_the_scanner_chokes_on_is_told(text: str) -> None:
    with pytest.raises(SettingsError, match=r"f.*(not valid YAML|UTF-8|unknown key)"):
        load_text(text, "f", Few)


def test_numbers_of_64_bits_stay_numbers() -> None:
    found = unwrap(parse("[18446744073709551615, -9223372036854775808, .inf, -.inf, 1:30]", "f"))
    for beyond in ("18446744073709551616", "-" + "9" * 30, "0" + "7" * 90, "0x1" + "0" * 16):
        with pytest.raises(SettingsError, match="seed: expected a whole number, got '"):
            load_text(f"seed: {beyond}", "f", Few)
    assert found == [2**64 - 1, -(2**63), float("inf"), float("-inf"), 90]


def test_only_so_many_problems_are_told_and_only_short_names_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    monkeypatch.setattr(
        settings_build, "closest", lambda name, known: compared.append(name) or closest(name, known)
    )
    with pytest.raises(SettingsError) as caught:
        load_text("".join(f"k{i}: 1\n" for i in range(5000)) + "rate: [x]", "f", Few)
    assert len(caught.value.problems) == 51
    assert str(caught.value.problems[-1]) == "f:1:1: and 4951 more"
    assert len(compared) == 50
    assert closest("seed" * 100, ["seed" * 100]) == ""


def test_all_yaml_is_read_in_one_place() -> None:
    files = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    assert len(files) > 100
    reads = re.compile(
        r"\byaml\.(load|load_all|safe_load|safe_load_all|full_load|unsafe_load|compose|compose_all"
        r"|parse|scan)\("
    )
    assert [file.name for file in files if reads.search(file.read_text())] == []
