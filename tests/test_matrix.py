"""Every algorithm with every kind of source in either runtime, as the registry lists them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from bray import registry
from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.templates.loading import compose
from bray.training.algorithm import load_algorithm
from bray_core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("evaluated_here")


def _small() -> ModuleType:
    path = Path(__file__).parent / "old_trials" / "make.py"
    spec = importlib.util.spec_from_file_location("old_trials_make", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SMALL = _small()
PROMPTED = ("dpo", "grpo", "sft")
"""Algorithms that ask prompts and play no environment."""
IMITATING = ("bc", "cql", "iql", "rl_imitation", "td3_bc")
CELLS = [
    pytest.param(
        name,
        source,
        runtime,
        id=f"{name}-{source}-{runtime}",
        marks=[
            *([pytest.mark.ray, pytest.mark.timeout(300)] if runtime == "ray" else []),
            *(
                []
                if (name, runtime) in (("appo", "local"), ("dqn", "local"))
                else [pytest.mark.long]
            ),
        ],
    )
    for name in registry.names()
    if name not in PROMPTED
    for source in ("environments", "gamecores")
    for runtime in ("local", "ray")
]


@pytest.fixture
def demonstrated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; for what learns from demonstrations, with some."""
    monkeypatch.chdir(tmp_path)
    if name in IMITATING:
        SMALL.make_demonstrations()
    return tmp_path


@pytest.mark.parametrize(("name", "source", "runtime"), CELLS)
def test_a_few_updates(
    name: str, source: str, runtime: str, demonstrated: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ray":
        request.getfixturevalue("ray_cluster")
    algorithm = load_algorithm(name)
    _, task, settings = SMALL.TRIALS[name]
    written = [*settings.split(), "goal.max_frames=256", "goal.evaluation_episodes=2"]
    if source == "gamecores":
        if not algorithm.takes.gamecores:
            with pytest.raises(ConfigError, match="num_processes: unknown setting of"):
                compose(name, task, [*written, "num_processes=1"])
            return
        written.append("num_processes=1")
    template = compose(name, task, written)
    launch = Launch(project=demonstrated, trial="cell", runtime=runtime)  # type: ignore[arg-type]
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert outcome.version >= 1
    assert report is not None
    assert (report.path / "model.onnx").is_file()
    assert os.listdir(demonstrated / "cell" / "checkpoints")
