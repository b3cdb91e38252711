from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from bray_core.config import (
    from_mapping,
    load_text,
    load_yaml,
    to_mapping,
    with_overrides,
)
from bray_core.errors import ConfigError, SettingsError
from bray_core.settings.choice import check_choice, closest
from bray_core.settings.settings_load import load_tree
from bray_core.settings.settings_tree import parse, unwrap


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    rate: float = 1e-3
    sizes: tuple[int, ...] = (1, 2)
    kind: Literal["queue", "replay"] = "queue"
    name: str | None = None
    span: tuple[int, float] = (0, 1.0)

    def __post_init__(self) -> None:
        if self.span[0] > self.span[1]:
            raise ConfigError(f"span={self.span} is empty: raise the second number")
        if self.rate <= 0:
            raise ConfigError(f"rate: expected more than 0, got {self.rate}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    part: Part = field(default_factory=Part)
    count: int = 1
    flag: bool = False
    path: Path = Path("here")


@dataclass(frozen=True, kw_only=True, slots=True)
class Needy:
    needed: int


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return file


def test_a_file_becomes_dataclasses(tmp_path: Path) -> None:
    text = "part:\n  rate: 3e-4\n  sizes: [4, 5]\n  kind: replay\nflag: true\npath: there\n"
    loaded = load_yaml(write(tmp_path, text), Whole)
    assert loaded == Whole(
        part=Part(rate=3e-4, sizes=(4, 5), kind="replay"), flag=True, path=Path("there")
    )
    assert from_mapping(to_mapping(loaded), Whole) == loaded


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_yaml(write(tmp_path, ""), Whole) == Whole()


def test_overrides_win(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 2\n")
    loaded = load_yaml(file, Whole, ["count=3", "part.rate=1e-4", "part.name=x", "part.sizes=[9]"])
    assert loaded == Whole(part=Part(rate=1e-4, name="x", sizes=(9,)), count=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cout: 1", r":1:\d+: cout: unknown key, did you mean 'count'\?; allowed: count, flag"),
        (
            "rate: 1",
            r":1:\d+: rate: unknown key, did you mean 'part\.rate'\?; allowed: count, flag",
        ),
        ("part: {count: 1}", r":1:\d+: part\.count: unknown key, did you mean 'count'"),
        ("count: 1\npart:\n  rat: 1", r":3:\d+: part\.rat: unknown key, did you mean 'rate'"),
        ("count: many", r":1:\d+: count: expected a whole number, got 'many'"),
        ("count: 1.5", r":1:\d+: count: expected a whole number, got 1\.5"),
        ("count: true", r":1:\d+: count: expected a whole number, got True"),
        ("flag: 1", r":1:\d+: flag: expected true or false, got 1"),
        ("part:\n  rate: fast", r":2:\d+: part\.rate: expected a number, got 'fast'"),
        ("part:\n  rate: -1", r":2:\d+: part\.rate: expected more than 0, got -1\.0"),
        (
            "part:\n  kind: quene",
            r":2:\d+: part\.kind: expected one of 'queue', 'replay', got 'quene'",
        ),
        ("part:\n  sizes: [1, x]", r":2:\d+: part\.sizes\[1\]: expected a whole number, got 'x'"),
        ("part:\n  sizes: 3", r":2:\d+: part\.sizes: expected a list, got 3: write \[3\]"),
        ("part:\n  sizes: '[3],[4]'", r":2:\d+: part\.sizes: expected a list, got '\[3\],\[4\]'"),
        ("part:\n  sizes: 3,4", r":2:\d+: part\.sizes: expected a list such as \[3,4\], got '3,4'"),
        ("part: 3", r":1:\d+: part: expected settings of Part, got 3: write \{\w+: …\}"),
        ("- 1", r":1:\d+: top level: expected settings of Whole"),
        ("count: 1\ncount: 2", r":2:\d+: count: given twice"),
        ("count: [", r":\d:\d+: not valid YAML"),
        ("count: 1\n---\ncount: 2", r":2:\d+: not valid YAML"),
        ("part:\n  rate: .nan", r":2:\d+: part\.rate: expected a number, got nan"),
        ("part:\n  rate: 1" + "0" * 400, r":2:\d+: part\.rate: expected a number, got '1000"),
        ("part:\n  rate:", r":2:\d+: part\.rate: expected a number, got None"),
        ("part:\n  span: [1, 2, 3]", r":2:\d+: part\.span: expected a list of 2, got \[1, 2, 3\]"),
        ("part:\n  span: [1.5, 2]", r":2:\d+: part\.span\[0\]: expected a whole number, got 1\.5"),
        ("part:\n  rate: 1\n  span: [3, 2]", r":3:\d+: part\.span=\(3, 2\.0\) is empty"),
        ("path: 3", r":1:\d+: path: expected a path, got 3"),
        ("part:\n  sizes: &a [*a]", r": nested too deeply, or an anchor that contains itself"),
        ("part:\n  sizes: " + "[" * 3000 + "]" * 3000, r": nested too deeply"),
        ('part:\n  name: "\0"', r": not text in UTF-8: special characters"),
    ],
)
def test_errors_name_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text + "\n")
    with pytest.raises(ConfigError, match=message) as caught:
        load_yaml(file, Whole)
    assert str(file) in str(caught.value)


def problems(text: str, schema: type[Any] = Whole) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_text(text, "f", schema)
    assert str(caught.value).split("\n") == [str(problem) for problem in caught.value.problems]
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.problems == caught.value.problems
    return [f"{problem.place} {problem.key}" for problem in caught.value.problems]


def test_all_that_is_wrong_is_told_at_once_by_line() -> None:
    text = "cout: 1\npart:\n  rate: -1\n  kind: quene\n  sizes: [x, 1, y]\nflag: 3\npath: 4"
    wanted = ["f:1:1 cout", "f:3:3 part.rate", "f:4:3 part.kind"]
    wanted += ["f:5:11 part.sizes[0]", "f:5:17 part.sizes[2]", "f:6:1 flag", "f:7:1 path"]
    assert problems(text) == wanted


def test_several_values_out_of_range_are_found_where_one_is_checked_after_the_other() -> None:
    assert problems("part:\n  span: [3, 2]\n  rate: -1") == ["f:2:3 part.span", "f:3:3 part.rate"]
    # `count` is above the default of `part.rate` alone, which nobody wrote: that is no problem.
    assert problems("part:\n  rate: -1\ncount: 1", Sum) == ["f:2:3 part.rate"]
    text = "part:\n  rate: 0.5\n  span: [3, 2]\ncount: 1"
    assert problems(text, Sum) == ["f:2:3 part.rate", "f:3:3 part.span"]
    assert problems("count: x\npart: 3", Sum) == ["f:1:1 count", "f:2:1 part"]


def test_what_is_needed_is_missing_beside_what_is_wrong() -> None:
    assert problems("ned: 1", Needy) == ["f:1:1 ned", "f:1:1 needed"]
    assert problems("needed: x", Needy) == ["f:1:1 needed"]


def test_what_is_needed_in_a_part_that_is_missing_has_its_name() -> None:
    around = make_dataclass("Around", [("part", Needy)])
    with pytest.raises(SettingsError, match=r"part\.needed: missing"):
        from_mapping({}, around)
    bare = make_dataclass("Bare", [("part", Part)])
    with pytest.raises(SettingsError, match="part: missing"):
        from_mapping({}, bare)


def test_text_that_is_no_yaml_is_one_problem() -> None:
    assert problems("count: [") == ["f:1:9 "]
    assert problems("count: 1\ncount: 2") == ["f:2:1 "]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("count", "expected key=value, got 'count'"),
        ("cont=1", "command line: cont: unknown key, did you mean 'count'"),
        ("count.x=1", r"count has no settings below it: .* got 1 \(.*\.yaml:1:1\)"),
        ("part.rate=slow", r"command line: part\.rate: expected a number"),
        ("part.rate=-1", r"command line: part\.rate: expected more than 0"),
    ],
)
def test_overrides_are_checked_alike(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_yaml(write(tmp_path, "count: 1\n"), Whole, [override])


def test_what_no_override_can_change_is_told_where_it_stands(tmp_path: Path) -> None:
    words = r"top level has no settings below it: expected them by name, got \['part'\] \(.*:1:1\)"
    with pytest.raises(ConfigError, match=words):
        load_yaml(write(tmp_path, "- part\n"), Whole, ["part.rate=1"])


def test_variables_of_the_environment_win_over_the_file_and_lose_to_the_command_line(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "count: 2\npart:\n  rate: 0.5\n")
    variables = {"BRAY_PART__RATE": "1e-4", "BRAY_PART__NAME": "y", "BRAY_DEBUG": "1", "X__Y": "1"}
    loaded = load_yaml(file, Whole, ["part.name=x"], variables)
    assert loaded == Whole(part=Part(rate=1e-4, name="x"), count=2)
    with pytest.raises(ConfigError, match=r"environment BRAY_PART__RAT: part\.rat: unknown key"):
        load_yaml(file, Whole, environment={"BRAY_PART__RAT": "1"})


def test_settings_that_were_read_once_can_be_loaded_again() -> None:
    text = "old: {rate: 0.25, sizes: [3, 4]}"
    tree = parse(text, "text")
    made = load_tree(tree, Whole, ["part.rate=0.5"], renamed={"old": "part"})
    assert made.part.rate == 0.5
    assert unwrap(tree) == {"old": {"rate": 0.25, "sizes": [3, 4]}}
    assert load_tree(tree, Whole, renamed={"old": "part"}).part == Part(rate=0.25, sizes=(3, 4))


def test_a_part_with_nothing_below_it_can_be_overridden(tmp_path: Path) -> None:
    assert load_yaml(write(tmp_path, "part:\n"), Whole, ["part.name=x"]).part.name == "x"
    assert load_yaml(write(tmp_path, "part:\n"), Whole) == Whole()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sum:
    part: Part = field(default_factory=Part)
    count: int = 1

    def __post_init__(self) -> None:
        if self.count > self.part.rate:
            raise ConfigError(f"part.rate: expected more than count={self.count}")


def test_an_error_across_parts_names_where_the_part_was_written(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 5\npart:\n  name: x\n  rate: 4\n")
    with pytest.raises(ConfigError, match=r":4:3: part\.rate: expected more than count=5"):
        load_yaml(file, Sum)


def test_the_schema_may_depend_on_the_file(tmp_path: Path) -> None:
    def choose(settings: Mapping[str, Any]) -> type[Any]:
        if settings.get("count") == 3:
            raise ConfigError("count: expected anything but 3")
        return Whole if "flag" in settings else Sum

    assert isinstance(load_yaml(write(tmp_path, "flag: true\n"), choose), Whole)
    with pytest.raises(ConfigError, match=r":2:1: count: expected anything but 3"):
        load_yaml(write(tmp_path, "flag: true\ncount: 3\n"), choose)
    with pytest.raises(ConfigError, match="top level: expected settings, got 3"):
        load_yaml(write(tmp_path, "3\n"), choose)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(b"count: \xff\xfe")
    with pytest.raises(ConfigError, match=r"run\.yaml: not text in UTF-8"):
        load_yaml(file, Whole)


def test_numbers_as_yaml_1_1_reads_them(tmp_path: Path) -> None:
    for text, value in (("1e-3", 1e-3), ("1E5", 1e5), ("2", 2.0), ("'.5'", 0.5), ("1_0.5", 10.5)):
        assert load_yaml(write(tmp_path, f"part: {{rate: {text}}}"), Whole).part.rate == value


def test_plain_values_are_checked_alike() -> None:
    with pytest.raises(ConfigError, match=r"trial: part\.rat: unknown key, did you mean 'rate'"):
        from_mapping({"part": {"rat": 1}}, Whole, "trial")
    with pytest.raises(ConfigError, match="expected a dataclass or mapping, got int"):
        to_mapping(3)


def test_a_dataclass_with_overrides() -> None:
    before = Whole(part=Part(rate=0.25))
    after = with_overrides(before, ["part.rate=1e-1"])
    assert (before.part.rate, after.part.rate) == (0.25, 0.1)
    assert with_overrides(after, ["part.rate=0.25"]) == before == with_overrides(before, [])
    with pytest.raises(ConfigError, match=r"command line: part\.rat: unknown key, did you mean"):
        with_overrides(before, ["part.rat=1"])
    with pytest.raises(ConfigError, match="command line: expected key=value, got 'part'"):
        with_overrides(before, ["part"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Free:
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def test_settings_of_any_names_are_plain_values() -> None:
    written = from_mapping(
        {"kwargs": {"size": 4, "walls": [[1, 2]], "door": {"open": False}}}, Free
    )
    assert written.kwargs == {"size": 4, "walls": [[1, 2]], "door": {"open": False}}
    assert with_overrides(Free(), ["kwargs.size=4", "kwargs.map={a: 1}"]).kwargs == {
        "size": 4,
        "map": {"a": 1},
    }
    assert load_text("kwargs:", "here", Free).kwargs == {}
    assert to_mapping(written) == {"kwargs": written.kwargs}
    with pytest.raises(ConfigError, match=r"kwargs: expected settings, such as {name: value}, got"):
        with_overrides(Free(), ["kwargs=[4]"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """Types that people write, beside those that bray does."""

    layers: list[int] = field(default_factory=lambda: [64])
    names: Sequence[str] = ()
    weights: dict[str, float] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    anything: Any = None
    bare: list = field(default_factory=list)  # type: ignore[type-arg]
    device: int | str = "cpu"
    target: Literal["auto"] | float = "auto"
    hidden: int | list[int] | None = None
    choice: Part | dict[str, int] | bool = False


def test_types_that_people_write_can_be_read_back() -> None:
    given: dict[str, Any] = {
        "layers": [3, 4],
        "names": ["a"],
        "weights": {"win": 1, "lose": "-1e-1"},
        "parts": [{"rate": 0.5}],
        "anything": {"deep": [1, {"deeper": None}]},
        "bare": [1, "two"],
        "device": 3,
        "target": 0.5,
        "hidden": [8, 8],
        "choice": {"a": 3},
    }
    own = from_mapping(given, Own)
    assert own.layers == [3, 4]
    assert own.names == ("a",)
    assert own.weights == {"win": 1.0, "lose": -0.1}
    assert own.parts == [Part(rate=0.5)]
    assert own.anything == given["anything"]
    assert (own.device, own.target, own.hidden, own.choice) == (3, 0.5, [8, 8], {"a": 3})
    assert from_mapping(to_mapping(own), Own) == own
    assert from_mapping(to_mapping(Own()), Own) == Own()
    other = from_mapping({"device": "cuda", "hidden": 8, "choice": {"rate": 1.0}}, Own)
    assert (other.device, other.hidden, other.choice) == ("cuda", 8, Part(rate=1.0))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("layers=[1, b]", r"layers\[1\]: expected a whole number, got 'b'"),
        ("layers=3", r"layers: expected a list, got 3: write \[3\]"),
        ("weights.win=much", "weights.win: expected a number, got 'much'"),
        ("device=[1]", r"device: expected a whole number.*, got \[1\]"),
        ("device=true", "device: expected a whole number or a string, got True"),
        ("target=automatic", "target: expected 'auto' or a number, got 'automatic'"),
        ("parts=[{rates: 1}]", r"parts\[0\].rates: unknown key, did you mean 'rate'"),
    ],
)
def test_what_does_not_fit_them_is_told(override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        with_overrides(Own(), [override])


@pytest.mark.parametrize("kind", [set[int], dict[int, str], bytes, list[set[str]], complex | None])
def test_a_field_that_nothing_written_becomes_is_refused_before_it_is_used(kind: Any) -> None:
    made = make_dataclass("Odd", [("odd", kind, field(default=None))])
    with pytest.raises(
        SettingsError, match=r"^here:1:1: odd: Odd declares it as .*, which cannot be r"
    ):
        load_text("{}", "here", made)


def test_a_missing_file_and_a_missing_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_yaml(tmp_path / "absent.yaml", Whole)
    with pytest.raises(ConfigError, match=r"run\.yaml:1:1: needed: missing"):
        load_yaml(write(tmp_path, "{}\n"), Needy)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    text = "path: !!python/object/apply:os.system ['touch pwned']\n"
    with pytest.raises(ConfigError, match="path"):
        load_yaml(write(tmp_path, text), Whole)


def test_closest() -> None:
    assert closest("trian", ["train", "serve"]) == ", did you mean 'train'?"
    assert closest("xyz", ["train"]) == ""


def test_a_choice_is_one_of_those_there_are() -> None:
    check_choice("kind", "count", ("count", "last"))
    for wrong in ("cuont", 3, None):
        with pytest.raises(ConfigError, match=rf"kind: expected one of count, last, got {wrong!r}"):
            check_choice("kind", wrong, ("count", "last"))
    with pytest.raises(ConfigError, match="got 'cuont', did you mean 'count'"):
        check_choice("kind", "cuont", ("count", "last"))
