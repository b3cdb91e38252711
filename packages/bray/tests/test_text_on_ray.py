"""Language models on Ray: samplers in processes of their own, beside a trainer that stays here."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import text_projects

from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.goal import Outcome
from bray.templates.loading import compose, load
from bray.templates.template import Template
from bray.text.samplers import remote
from bray.text.samples import TextSample
from bray_core.metrics.json_lines import curve
from bray_model.text.text_model import TextModel

pytestmark = [
    pytest.mark.long,
    pytest.mark.ray,
    pytest.mark.timeout(280),
    pytest.mark.usefixtures("ray_cluster"),
]

SMALL = [*text_projects.SMALL, "prompts_per_step=3", "num_workers=2"]


class Watched:
    """Trains on Ray, and keeps what plays there.

    Args:
        folder: folder of the project.
        patch: lets the samplers be seen.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.pools: list[remote.RemoteRounds] = []
        made = remote.RemoteRounds.__init__

        def seen(rounds: remote.RemoteRounds, *parts: Any, **more: Any) -> None:
            made(rounds, *parts, **more)
            self.pools.append(rounds)

        patch.setattr(remote.RemoteRounds, "__init__", seen)

    def train(self, template: Template, trial: str = "one") -> Outcome:
        launch = Launch(project=self.folder, trial=trial, runtime="ray")
        outcome, report = run_template(template, launch.open, completed_goal(template))
        assert report is None
        return outcome

    def curve(self, name: str, trial: str = "one") -> list[float]:
        return curve(self.folder / trial, name)[1]


def prompts(*settings: str) -> Template:
    return compose("grpo", "prompts.jsonl", [*SMALL, "reward=letter_reward.py:vowels", *settings])


@pytest.fixture
def on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A project with a file of prompts, a reward for a letter, and a program that plays."""
    text_projects.make_project(tmp_path, monkeypatch)
    return Watched(tmp_path, monkeypatch)


def test_two_samplers_play_and_the_trainer_learns_as_in_one_process(on_ray: Watched) -> None:
    outcome = on_ray.train(prompts("goal.max_frames=960"))
    assert outcome.frames == 960
    assert outcome.evaluation_return > 2, "of four tokens chance has one"
    assert outcome.version >= 60
    # In turns: each token is of the newest weights, and those are the trainer's.
    assert max(on_ray.curve("trainer/policy_lag_versions")) == 0
    assert max(on_ray.curve("trainer/sampler_gap_max")) < 1e-4
    assert on_ray.pools[0]._pool.size == 0, "closed"
    with TextModel.load(on_ray.folder / "one" / "models" / "policy" / "huggingface") as model:
        assert model.decode(model.encode("ab?")) == "ab?"


def test_a_seed_repeats_and_a_resumed_trial_goes_on(on_ray: Watched) -> None:
    runs = [on_ray.train(prompts("goal.max_frames=120"), trial) for trial in ("one", "two")]
    assert runs[0].episode_returns == runs[1].episode_returns
    weights = [
        (on_ray.folder / trial / "models" / "policy" / "huggingface" / "model.safetensors")
        for trial in ("one", "two")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    more = on_ray.train(prompts("goal.max_frames=240"))
    assert more.frames == 240
    assert more.version > runs[0].version
    assert max(on_ray.curve("trainer/policy_lag_versions")) == 0


def test_arithmetic_is_sampled_ahead_of_training_within_the_bound(on_ray: Watched) -> None:
    settings = ["supervised_until=null", "least_informative=0", "prompts_per_step=4"]
    settings += ["group_size=4", "max_lag=2", "old_log_prob=trainer", "num_workers=2"]
    settings += ["goal.evaluation_episodes=4", "goal.max_frames=160"]
    outcome = on_ray.train(load("arithmetic", settings))
    assert outcome.version >= 2
    assert max(on_ray.curve("trainer/policy_lag_versions")) <= 2


KILLED_ONCE = """
import os, pathlib, signal

def vowels(prompts, completions, wanted):
    try:
        pathlib.Path("killed").touch(exist_ok=False)
    except FileExistsError:
        return [float(text.count(letter)) for text, letter in zip(completions, wanted)]
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_sampler_killed_within_a_round_is_made_anew_and_its_groups_are_counted(
    on_ray: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    (on_ray.folder / "killed_reward.py").write_text(KILLED_ONCE)
    monkeypatch.delitem(sys.modules, "killed_reward", raising=False)
    template = prompts("goal.max_frames=120", "source.reward=killed_reward.py:vowels")
    outcome = on_ray.train(template)
    assert outcome.frames == 120, "its groups were asked again"
    assert (on_ray.folder / "killed").is_file()
    # Of a round's three groups the first sampler has two, the second one.
    assert sum(on_ray.curve("text/lost_groups")) in (1, 2)
    assert sum(on_ray.curve("actor/workers_lost")) == 1
    assert max(on_ray.curve("trainer/policy_lag_versions")) == 0


def test_a_sampler_killed_between_rounds_is_made_anew(
    on_ray: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, rounds = remote.RemoteRounds.play, list[int]()

    def killing(self: remote.RemoteRounds, *arguments: Any) -> list[TextSample]:
        rounds.append(len(rounds))
        if rounds[-1] in (1, 3):
            os.kill(self.pids()[rounds[-1] % 2], signal.SIGKILL)
        return play(self, *arguments)

    monkeypatch.setattr(remote.RemoteRounds, "play", killing)
    outcome = on_ray.train(prompts("goal.max_frames=120"))
    assert outcome.frames == 120
    assert max(on_ray.curve("trainer/policy_lag_versions")) == 0
    assert max(on_ray.curve("trainer/sampler_gap_max")) < 1e-4, "it has the newest weights"


def test_programs_play_at_the_endpoints_of_two_samplers(on_ray: Watched) -> None:
    settings = [
        *SMALL,
        f"model.chat_template={text_projects.TEMPLATE}",
        "max_lag=2",
        "source.count=2",
    ]
    program = f"source.program={sys.executable} play.py"
    outcome = on_ray.train(compose("grpo", "", [*settings, program, "goal.max_frames=48"]))
    assert outcome.frames == 48
    assert len(outcome.episode_returns) > 0
    logs = on_ray.folder / "one" / "programs"
    assert {one.name for one in logs.iterdir()} == {"sampler-0", "sampler-1"}


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_what_learns_from_a_file_asks_its_evaluations_of_a_sampler(
    on_ray: Watched, algorithm: str
) -> None:
    rows = [
        {"prompt": f"{one}?", "wanted": "a", "chosen": "aa", "rejected": "bc", "completion": "aa"}
        for one in "abc" * 7
    ]
    (on_ray.folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    plain = [one for one in SMALL if not one.startswith(("prompts_", "group_", "least_"))]
    settings = [*plain, "reward=letter_reward.py:vowels", "goal.max_frames=2000"]
    file = {
        "sft": ("prompts.jsonl", "source.demonstrations=rows.jsonl"),
        "dpo": ("rows.jsonl", "source.held_out=prompts.jsonl"),
    }
    asked, rest = file[algorithm]
    template = compose(algorithm, asked, [*settings, rest])
    outcome = on_ray.train(template)
    assert outcome.evaluation_return > 1.5, "the file answers with two of the letter"
