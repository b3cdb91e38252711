"""Parameters split over two ranks (FSDP2 over gloo), compared with one process that has all."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_trainer import Trainer, TrainerConfig

SCRIPT = Path(__file__).with_name("sharding_checks.py")
checks = SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="sharding_checks"))


def both(first: Packed, second: Packed) -> Packed:
    return Packed(checks.LAYOUT, np.concatenate([first.block, second.block]))


REPLAYS = [
    both(checks.rows(10, 2), checks.rows(11, 5)),
    both(checks.rows(20, 4), checks.rows(21, 3)),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, two_ranks: Any) -> list[dict[str, Any]]:
    """What both ranks found; the checkpoint `one` is of one process, `two` of both."""
    directory = tmp_path_factory.mktemp("sharding")
    checks.trained(REPLAYS, directory=directory / "one")
    shutil.copytree(directory / "one", directory / "copy")
    ended = two_ranks(SCRIPT, directory)
    assert [code for code, _, _ in ended] == [0, 0], "\n".join(errors for _, _, errors in ended)
    return [{**json.loads(out), "directory": directory} for _, out, _ in ended]


def assert_same(found: dict[str, list[float]], wanted: dict[str, list[float]]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, abs=1e-6), name


def test_split_parameters_take_the_steps_of_one_process(found: list[dict[str, Any]]) -> None:
    _, wanted = checks.trained(REPLAYS)
    _, before = checks.trained(REPLAYS[:1])
    assert wanted["head.weight"] != pytest.approx(before["head.weight"], abs=1e-3)
    assert_same(found[0]["published"], wanted)
    assert found[1]["published"] == {}, "the first rank publishes"


def test_each_rank_holds_a_part(found: list[dict[str, Any]]) -> None:
    module = checks.Layers(0)
    size = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert found[0]["held"] < size
    assert sum(one["held"] for one in found) == size
    assert sum(one["moments"] for one in found) == trained


def test_checkpoints_are_whole_and_resume_with_any_number_of_ranks(
    found: list[dict[str, Any]],
) -> None:
    again = both(checks.rows(10, 2), checks.rows(11, 5))
    _, wanted = checks.trained([*REPLAYS, again])
    assert_same(found[0]["resumed"], wanted)  # by two from one
    assert_same(found[0]["plain"], wanted)  # by two that split nothing
    _, alone = checks.trained([again], directory=found[0]["directory"] / "two")
    assert_same(alone, wanted)


def test_parts_count_as_their_rows_whatever_rank_has_them(found: list[dict[str, Any]]) -> None:
    _, wanted = checks.trained([both(checks.rows(30, 2), checks.rows(31, 4))])
    assert_same(found[0]["accumulated"], wanted)


def test_ranks_with_other_numbers_of_batches_are_told(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert "shard: got" in one["error"]
        assert "give each rank equally many" in one["error"]


def test_what_is_not_built_beside_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="shard: expected precision fp32 or bf16"):
        TrainerConfig(shard=True, precision="fp16")
    modules = {"a": checks.Layers(0), "b": checks.Layers(1)}
    with pytest.raises(ConfigError, match="shard: expected one module, got 2 by name"):
        Trainer(modules, checks.Feed([]), config=TrainerConfig(shard=True))


def test_alone_nothing_is_split() -> None:
    trainer, split = checks.trained(REPLAYS, shard=True)
    _, plain = checks.trained(REPLAYS)
    assert not trainer.is_sharded
    assert split == plain
