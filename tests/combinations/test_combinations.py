"""Any algorithm × any space × any source × memory × network: refused in words, or really run.

The rule that refuses is tested on all cells. Of those that go together a set is run that covers
every pair of any two factors' values, two updates each.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from combinations.every_space import ACTIONS, MASKED, OBSERVATIONS, name_of

from bray import registry
from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.sources.environments import read_spaces
from bray.templates.loading import compose
from bray.training.algorithm import load_algorithm
from bray.training.combination import refusal
from bray_core.spaces import Spaces

pytestmark = pytest.mark.usefixtures("evaluated_here")

_NEEDS_MORE = ("rl_imitation", "bc", "iql", "cql", "td3_bc")
"""Algorithms that need demonstrations: `test_matrix.py` runs them."""
_PROMPTED = ("dpo", "grpo", "sft")
"""Algorithms that ask prompts and play no environment."""
NAMES = [name for name in registry.names() if name not in (*_NEEDS_MORE, *_PROMPTED)]
SMALL = {
    "num_envs": 2,
    "steps_per_replay": 32,
    "segment_length": 8,
    "epochs": 1,
    "minibatch_size": 16,
    "warmup_frames": 32,
    "batch_size": 8,
    "steps_per_collect": 8,
    "replays_per_collect": 2,
    "population": 4,
    "hidden": [16],
}
"""Settings of which an algorithm takes those that it has."""
OWN = '''
import torch
from torch import nn
from bray_core import nested

class Sum(nn.Module):
    """Reads every leaf as one vector, whatever it is."""
    feature_size = 8

    def __init__(self, spaces, config):
        super().__init__()
        seen = spaces.observation
        if isinstance(seen, dict) and "action_mask" in seen:
            seen = seen["observation"]
        self.ranks = [len(leaf.shape) for _, leaf in nested.items(seen)]
        size = sum(leaf.num_numbers for _, leaf in nested.items(seen))
        self.layer = nn.Linear(size, self.feature_size)

    def forward(self, seen):
        leaves = [leaf for _, leaf in nested.items(seen)]
        flat = [
            leaf.float().reshape(*leaf.shape[: leaf.ndim - rank], -1)
            for leaf, rank in zip(leaves, self.ranks)
        ]
        return torch.tanh(self.layer(torch.cat(flat, -1)))
'''


class Cell(NamedTuple):
    """One combination."""

    algorithm: str
    observation: str
    action: str
    source: str
    memory: str
    network: str

    @property
    def task(self) -> str:
        """The environment's name."""
        return f"combinations.every_space:{name_of(self.observation, self.action)}"


CLASSES = {name: load_algorithm(name) for name in NAMES}


@cache
def spaces_of(task: str) -> Spaces:
    """Spaces of an environment, read once."""
    return read_spaces(task)


def cells() -> Iterator[Cell]:
    """All combinations, of which many do not go together."""
    for observation in [*OBSERVATIONS, "masked"]:
        for action in MASKED if observation == "masked" else ACTIONS:
            for algorithm, source, memory, network in itertools.product(
                NAMES, ("environments", "gamecores"), ("none", "memory"), ("default", "own")
            ):
                yield Cell(algorithm, observation, action, source, memory, network)


@cache
def reason(cell: Cell) -> str | None:
    """Why a cell is refused."""
    source: Any = cell.source
    return refusal(
        CLASSES[cell.algorithm],
        spaces_of(cell.task),
        source=source,
        memory_size=8 if cell.memory == "memory" else 0,
    )


def covering() -> list[Cell]:
    """Cells that go together and hold every pair of values of two factors that any cell holds."""
    left: dict[Cell, set[Any]] = {}
    for cell in cells():
        if reason(cell) is None:
            left[cell] = set(itertools.combinations(enumerate(cell), 2))
    wanted = set().union(*left.values())
    chosen = []
    order = list(left)
    most = [(-len(pairs), number) for number, pairs in enumerate(left.values())]
    heapq.heapify(most)
    while wanted:  # what a cell still adds only shrinks: look at the best ones alone
        _, number = heapq.heappop(most)
        adds = (-len(left[order[number]] & wanted), number)
        if most and adds > most[0]:
            heapq.heappush(most, adds)
            continue
        wanted -= left[order[number]]
        chosen.append(order[number])
    return sorted(chosen)


def test_every_refusal_names_what_was_expected_and_a_remedy() -> None:
    refused = {cell: words for cell in cells() if (words := reason(cell)) is not None}
    assert 0 < len(refused) < len(list(cells()))
    for cell, words in refused.items():
        assert not any(raw in words for raw in ("ArraySpec", "LeafSpace", "dtype(")), words
        assert words.partition(":")[0] in (
            "algorithm",
            "source",
            "environment",
            "model.memory_size",
        )
        title = CLASSES[cell.algorithm].title
        assert title in words, "which algorithm"
        is_of_others = CLASSES[cell.algorithm].takes.plays != "environments"
        assert is_of_others or any(cure in words for cure in ("train PPO", "give it")), words


def test_what_the_mathematics_allows_is_allowed() -> None:
    """Independent of the rule: which kinds of actions each family's loss is defined for."""
    takes_all = {"ppo", "a2c", "impala", "appo", "es"}
    for cell in cells():
        allowed = (
            cell.algorithm in takes_all
            or (cell.algorithm in ("dqn",) and cell.action == "discrete")
            or (cell.algorithm in ("td3",) and cell.action in ("box", "matrix"))
        )
        if cell.memory == "memory":
            allowed = allowed and cell.algorithm in ("ppo", "a2c", "impala", "appo", "dqn")
        if cell.source == "gamecores":
            allowed = allowed and cell.algorithm != "es"
        if cell.algorithm in takes_all | {"dqn", "td3"}:
            assert (reason(cell) is None) == allowed, cell


def settings_of(cell: Cell, folder: Path) -> list[str]:
    """Settings of a run of two updates."""
    algorithm = CLASSES[cell.algorithm]
    known = {}
    for name, value in SMALL.items():
        try:
            known[algorithm.part_of(name)] = value
        except ValueError:
            continue
    if cell.source == "gamecores":
        known["source.num_processes"] = 1
    if cell.memory == "memory":
        known["model.memory_size"] = 8
    if cell.network == "own":
        file = folder / "own_trunk.py"
        file.write_text(OWN)
        known["model.network"] = f"{file}:Sum"
    known |= {"goal.max_frames": 96, "goal.evaluation_episodes": 2}
    return [f"{name}={value}" for name, value in known.items()]


@pytest.mark.long
@pytest.mark.parametrize("cell", covering(), ids="-".join)
def test_a_pairwise_covering_set_trains_is_exported_and_evaluated(
    cell: Cell, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # of gamecores
    folder = tmp_path_factory.getbasetemp()
    template = compose(cell.algorithm, cell.task, settings_of(cell, folder))
    launch = Launch(project=tmp_path_factory.mktemp("cell"), trial="cell", runtime="local")
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert outcome.version >= 1
    assert outcome.evaluation_return == 7
    assert report is not None
    assert (report.path / "model.onnx").is_file()


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("cell", covering()[20::40], ids="-".join)
def test_a_sample_trains_on_ray(cell: Cell, tmp_path: Path) -> None:
    """The environment is a class of a file that no worker has registered."""
    task = f"{Path(__file__).with_name('every_space.py')}:Every"
    spaces = f"source.kwargs={{observation: {cell.observation}, action: {cell.action}}}"
    longer = "goal.max_frames=2048"  # players are held back, but not at once
    template = compose(cell.algorithm, task, [*settings_of(cell, tmp_path), spaces, longer])
    launch = Launch(project=tmp_path, trial="cell", runtime="ray")
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert outcome.version >= 1
    assert outcome.evaluation_return == 7
    assert report is not None
