"""Callbacks, curricula, schedules and seeds in templates of named parts, as they are trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hooked_game import Notes

import bray
from bray.composition import main_evaluation
from bray.composition.train import train_composition
from bray.composition.turns import episode_of
from bray.composition.whole_run import completed_goal
from bray.goal import Outcome
from bray.templates.callbacks import make_callbacks
from bray.templates.loading import load, parse
from bray_actor.episodes import PlayedEpisode
from bray_actor.multi_agent.seat import GameResult
from bray_core.errors import ConfigError

HANDS = """\
trainers:
  left: &ppo {algorithm: ppo, steps_per_replay: 64, minibatch_size: 64, epochs: 1,
    learning_rate: {start: 1.0e-3, end: 1.0e-4, frames: 128}}
  right: *ppo
agents: {left: &short {segment_length: 8}, right: *short}
sources:
  hands: {kind: agents, environment: rps_v2, num_envs: 4, kwargs: {max_cycles: 4},
    agents: {player_0: left, player_1: right}}
goal: {agent: left, max_frames: 512, evaluation_episodes: 4}
callbacks: [{class: "hooked_game:Notes", settings: {stop_at: 256}}]
"""
"""Two learners that play rock, paper, scissors against each other, four rounds a game."""

ALONE = """\
trainers: {walker: {algorithm: ppo, steps_per_replay: 256, minibatch_size: 256, epochs: 1}}
agents: {walker: {}}
sources:
  path: {kind: environments, environment: "hooked_game:HookedGame", num_envs: 4,
    curriculum: {difficulty: {start: 0.0, end: 1.0, frames: 512}}}
goal: {max_frames: 1024, evaluation_episodes: 4}
callbacks: ["hooked_game:Notes"]
"""


@pytest.fixture(autouse=True)
def heard() -> Any:
    Notes.heard.clear()
    yield Notes.heard
    Notes.heard.clear()


def told(kind: str) -> list[Any]:
    return [what for name, what in Notes.heard if name == kind]


def train(folder: Path, text: str, trainers: dict[str, Any] | None = None) -> Outcome:
    (folder / "mine.yaml").write_text(text)
    template = load(str(folder / "mine.yaml"))
    assert template.composition is not None
    with bray.init(folder, "trial") as run:
        make = run.trainer

        def trainer(name: str, *arguments: Any, **options: Any) -> Any:
            made = make(name, *arguments, **options)
            (trainers if trainers is not None else {})[name] = made
            return made

        run.trainer = trainer  # type: ignore[method-assign]
        for callback in make_callbacks(template.callbacks):
            run.listen(callback)
        return train_composition(run, template.composition, completed_goal(template))


def test_games_are_episodes_of_the_main_learner_and_schedules_count_its_frames(
    tmp_path: Path,
) -> None:
    trainers: dict[str, Any] = {}
    outcome = train(tmp_path, HANDS, trainers)
    kinds = [name for name, _ in Notes.heard]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert outcome.stopped == "enough is enough"
    assert 256 <= outcome.frames < 512
    assert {episode.length for episode in told("episode")} == {4}
    assert len(told("episode")) >= 24
    assert told("evaluation")[0].frames == outcome.frames
    folders = {saved.path.parent.name for saved in told("checkpoint")}
    assert folders == {"left", "right"}
    for name in ("left-trainer", "right-trainer"):
        learnt = trainers[name]
        rate = 1e-3 - 9e-4 * min(1.0, 64 * (learnt.replays - 1) / 128)
        assert learnt.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_environments_of_one_agent_follow_a_curriculum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_evaluation, "evaluate_latest", lambda *_, **__: [8.0] * 4)
    train(tmp_path, ALONE)
    seen = [episode.metrics["difficulty"] for episode in told("episode")]
    assert sorted(set(seen)) == [0.0, 0.5, 1.0]
    assert (seen[:8], seen[-8:]) == ([0.0] * 8, [1.0] * 8)
    assert {episode.length for episode in told("episode")} == {8}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("nowhere:Notes", r"callbacks\[0\]: expected module:Class.*No module named 'nowhere'"),
        ("Notes", r"callbacks\[0\]: expected module:Class or file.py:Class, got 'Notes'"),
    ],
)
def test_wrong_callbacks_are_refused(tmp_path: Path, entry: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(ALONE.replace("hooked_game:Notes", entry))
    with pytest.raises(ConfigError, match=message):
        load(str(tmp_path / "mine.yaml"))


def test_a_function_of_a_curriculum_is_looked_up_for_its_owner_alone(tmp_path: Path) -> None:
    text = ALONE.replace("{difficulty: {start: 0.0, end: 1.0, frames: 512}}", '"nowhere:f"')
    assert parse(text, "mine.yaml").composition is not None
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"curriculum: expected module:function.*nowhere"):
        load(str(tmp_path / "mine.yaml"))


def test_another_seed_is_that_of_all_learners() -> None:
    made = parse(HANDS, "mine.yaml").with_seed(7)
    assert made.composition is not None
    assert (made.seed, made.composition.seed, made.to_mapping()["seed"]) == (7, 7, 7)
    assert made.to_mapping()["callbacks"] == [
        {"class": "hooked_game:Notes", "settings": {"stop_at": 256}}
    ]


def test_a_game_is_an_episode_of_who_plays_in_it() -> None:
    names = {"red_0": "main", "red_1": "main", "blue": "v3"}
    returns, lengths = {"red_0": 1.0, "red_1": 3.0, "blue": -1.0}, dict.fromkeys(names, 5)
    scores = {"red_0": 1.0, "red_1": 0.5, "blue": 0.0}
    played = GameResult(names, returns, lengths, scores)
    assert episode_of(played, "main") == PlayedEpisode(2.0, 5, {"score": 0.75})
    told = {"red_0": {"gold": 1.0}, "red_1": {"gold": 3.0, "kills": 2.0}}
    expected = {"score": 0.75, "gold": 2.0, "kills": 2.0}
    assert episode_of(played._replace(metrics=told), "main") == PlayedEpisode(2.0, 5, expected)
    assert episode_of(played._replace(scores={}), "v3") == PlayedEpisode(-1.0, 5)
    assert episode_of(played, "rival") is None
    seated = played._replace(seats={**names, "late": "main", "never": "rival"})
    assert episode_of(seated, "main") == PlayedEpisode(2.0, 5, {"score": 0.75})
    assert episode_of(seated, "rival") is None, "its agent never came"
