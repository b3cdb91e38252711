"""Callbacks in a script and in a template, metrics of episodes, curricula and schedules in runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hooked_game import Broken, Configured, HookedGame, Notes

import bray
from bray.algorithms import es
from bray.algorithms.dqn import DQN
from bray.algorithms.es import ES
from bray.algorithms.ppo import PPO
from bray.algorithms.pqn import PQN
from bray.callbacks import Callbacks, EvaluationResult, Progress, SavedCheckpoint
from bray.goal import Goal, Outcome
from bray.sources.curriculum import Curriculum
from bray.templates.callbacks import make_callbacks
from bray.templates.loading import load, parse
from bray.training import sampled_policy
from bray_actor.episodes import PlayedEpisode
from bray_algo.evolution import EvolutionStrategy
from bray_core.cli import main
from bray_core.errors import BrayError, ConfigError, SettingsError
from bray_core.settings.schedule import Schedule

pytestmark = pytest.mark.usefixtures("evaluated_here")

GAME = "hooked_game:HookedGame"
SMALL: dict[str, Any] = {"num_envs": 4, "steps_per_replay": 256, "minibatch_size": 256}
RATE = {"start": 1e-3, "end": 1e-4, "frames": 1024}
CURRICULUM = {"difficulty": {"start": 0.0, "end": 1.0, "frames": 512}}


@pytest.fixture(autouse=True)
def quick_evaluations(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Evaluate without a process, but in slow tests: that takes seconds, whatever is played."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    if "slow" not in request.keywords:
        monkeypatch.setattr(sampled_policy, "evaluate_latest", lambda *_, **__: [8.0] * 4)


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[tuple[str, Any]]]:
    Notes.heard.clear()
    yield Notes.heard
    Notes.heard.clear()


def run_ppo(folder: Path, frames: int, *callbacks: Any, **settings: Any) -> Outcome:
    with bray.init(folder, "trial") as run:
        for callback in callbacks:
            run.listen(callback)
        goal = Goal(max_frames=frames, evaluation_episodes=4)
        return PPO.of(GAME, **{**SMALL, **settings}).train(run, goal=goal)


def told(kind: str) -> list[Any]:
    return [what for name, what in Notes.heard if name == kind]


def episodes_of(folder: Path, **settings: Any) -> list[PlayedEpisode]:
    run_ppo(folder, 1024, Notes(), **settings)
    found = told("episode")
    Notes.heard.clear()
    return found


class TestCallbacks:
    def test_a_run_tells_of_everything_in_order(self, tmp_path: Path) -> None:
        outcome = run_ppo(tmp_path, 512, Notes(), info_metrics=("success",))
        kinds = [name for name, _ in Notes.heard]
        assert (kinds[0], kinds[-1], kinds.count("start"), kinds.count("end")) == (
            "start", "end", 1, 1,
        )  # fmt: skip
        assert told("start")[0].frames == 0
        assert [progress.frames for progress in told("update")] == [256, 512, 512]
        assert told("update")[-1].figures["evaluation_return"] == 8.0
        assert len(told("episode")) == 512 // 8
        first = told("episode")[0]
        assert (first.episode_return, first.length) == (8.0, 8)
        assert set(first.metrics) == {"own", "difficulty", "success"}
        assert told("evaluation") == [
            EvaluationResult(returns=[8.0] * 4, mean_return=8.0, version=2, frames=512)
        ]
        assert {type(one) for one in told("checkpoint")} == {SavedCheckpoint}
        assert told("checkpoint")[-1].path.is_file()
        assert told("end") == [outcome]

    def test_one_stops_the_run_and_the_result_says_why(self, tmp_path: Path) -> None:
        outcome = run_ppo(tmp_path, 100_000, Notes(stop_at=512))
        assert (outcome.frames, outcome.stopped) == (512, "enough is enough")
        assert not outcome.reached
        assert outcome.episode_returns == [8.0] * 4, "it was evaluated once more"
        result = json.loads((tmp_path / "trial" / "result.json").read_text())
        assert result["stopped"] == "enough is enough"

    @pytest.mark.slow
    def test_workers_on_ray_tell_of_episodes_and_follow_a_curriculum(self, tmp_path: Path) -> None:
        for number, processes in enumerate((0, 1)):
            with bray.init(tmp_path, f"trial-{number}", "ray") as run:
                run.listen(Notes())
                made = PPO.of(
                    GAME,
                    **{**SMALL, "num_envs": 2},
                    num_workers=1,
                    num_processes=processes,
                    curriculum={"difficulty": {"start": 0.0, "end": 1.0, "frames": 1024}},
                )
                made.train(run, goal=Goal(max_frames=4096, evaluation_episodes=2))
            seen = [episode.metrics["difficulty"] for episode in told("episode")]
            assert seen[0] == 0.0 < seen[-1], "workers hear of it with the next question to them"
            assert {episode.length for episode in told("episode")} == {8}
            Notes.heard.clear()

    def test_an_error_names_the_callback_and_the_end_is_told(self, tmp_path: Path) -> None:
        class Fails(bray.Callback):
            def on_episode(self, episode: PlayedEpisode) -> None:
                raise KeyError("win")

        with pytest.raises(BrayError, match=r"callback .*Fails: on_episode: KeyErr"):
            run_ppo(tmp_path, 512, Notes(), Fails())
        assert told("end") == [None]
        assert list(tmp_path.glob("trial/checkpoints/replay-*.pt")), "what was trained is kept"

    def test_one_that_saves_where_it_is_told_of_a_checkpoint_writes_no_other(
        self, tmp_path: Path
    ) -> None:
        class Saves(bray.Callback):
            def on_start(self, progress: Progress) -> None:
                self.progress = progress

            def on_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
                self.progress.save()

        assert run_ppo(tmp_path, 256, Saves(), Notes()).frames == 256
        plain = len(told("checkpoint"))
        Notes.heard.clear()
        run_ppo(tmp_path / "plain", 256, Notes())
        assert plain == len(told("checkpoint")) > 0

    def test_an_error_at_the_end_leaves_the_outcome(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Fails(bray.Callback):
            def on_end(self, outcome: Outcome | None) -> None:
                raise ValueError("no network")

        assert run_ppo(tmp_path, 256, Fails(), Notes()).frames == 256
        assert "no network" in caplog.text
        assert len(told("end")) == 1, "the others are told, too"

    def test_one_that_ends_the_program_ends_the_run_with_a_checkpoint(self, tmp_path: Path) -> None:
        class Enough(bray.Callback):
            def on_evaluation(self, evaluation: EvaluationResult) -> None:
                sys.exit("enough")

            def on_end(self, outcome: Outcome | None) -> None:
                sys.exit("enough")

        with pytest.raises(BrayError, match="on_evaluation: SystemExit: enough: to end the run,"):
            run_ppo(tmp_path, 512, Enough(), Notes())
        assert told("end") == [None], "the others are told, too"
        assert list(tmp_path.glob("trial/checkpoints/replay-*.pt")), "what was trained is kept"

    def test_an_error_at_an_abandoned_end_hides_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Fails(bray.Callback):
            def on_start(self, progress: Progress) -> None:
                raise ValueError("first")

            def on_end(self, outcome: Outcome | None) -> None:
                raise ValueError("second")

        with pytest.raises(BrayError, match="on_start: ValueError: first"):
            run_ppo(tmp_path, 512, Fails())
        assert "second" in caplog.text

    @pytest.mark.parametrize("listener", [None, 3, Notes])
    def test_what_is_no_callback_is_refused(self, listener: Any) -> None:
        with pytest.raises(ConfigError, match=r"callback: expected a bray\.Callback or a function"):
            Callbacks().add(listener)

    def test_methods_that_would_not_be_called_are_refused(self) -> None:
        class Misspelt(bray.Callback):
            def on_evaluate(self, evaluation: EvaluationResult) -> None: ...

        class Awaited(bray.Callback):
            async def on_update(self, progress: Progress) -> None: ...  # type: ignore[override]

        class Bare(bray.Callback):
            def on_end(self) -> None: ...  # type: ignore[override]

        class Mixed(dict[str, int], bray.Callback):
            def update_all(self) -> None: ...

            @staticmethod
            def on_start(progress: Progress) -> None: ...  # type: ignore[override]

        for kind, words in (
            (Misspelt, r"Misspelt: on_evaluate: nothing calls it, did you mean 'on_evaluation'"),
            (Awaited, r"Awaited: on_update: expected a method that is no `async def`"),
            (Bare, r"Bare: on_end: expected a method that is called with one argument"),
        ):
            with pytest.raises(ConfigError, match=words):
                Callbacks().add(kind())
        Callbacks().add(Mixed())

    @pytest.mark.parametrize("why", ["", "  ", "x" * 501, 3])
    def test_a_reason_to_stop_is_a_sentence(self, why: Any) -> None:
        progress = Progress(frames=0, seconds=0.0, figures={}, end_run=lambda why: None)
        with pytest.raises(ConfigError, match="stop: expected a reason of 1 to 500 characters"):
            progress.stop(why)

    def test_a_progress_of_no_run_stops_nothing(self) -> None:
        with pytest.raises(ConfigError, match="expected within a run"):
            Progress(frames=0, seconds=0.0, figures={}).stop("now")


def template(folder: Path, **more: Any) -> Path:
    path = folder / "walk.yaml"
    source = {"environment": GAME, "num_envs": 4, **more.pop("source", {})}
    trainer = {"steps_per_replay": 256, **more.pop("trainer", {})}
    goal = {"max_frames": 2048, "evaluation_episodes": 4}
    content = {"algorithm": "ppo", "source": source, "trainer": trainer, "goal": goal, **more}
    path.write_text(yaml.safe_dump(content))
    return path


class TestOfTemplates:
    @pytest.mark.slow
    def test_a_template_trains_with_its_callbacks(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        named = {"class": "hooked_game:Notes", "settings": {"stop_at": 256}}
        path = template(tmp_path, callbacks=[named, "hooked_game:Notes"])
        options = ["--project", str(tmp_path / "trials")]
        assert main(["train", str(path), *options]) == 1
        assert "A callback stopped it: enough is enough" in capsys.readouterr().out
        assert len(told("start")) == 2
        again = load(str(tmp_path / "trials" / "walk"))
        assert again.callbacks == (named, "hooked_game:Notes")

    def test_settings_are_those_of_the_constructor_or_its_dataclass(self) -> None:
        own = {"class": "hooked_game:Configured", "settings": {"every": 5}}
        first, second = make_callbacks([own, "hooked_game:Notes"])
        assert isinstance(first, Configured)
        assert first.config.every == 5
        assert isinstance(second, Notes)

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ("Notes", r"callbacks\[0\]: expected module:Class or file.py:Class, got 'Notes'"),
            ("nowhere:Notes", r"callbacks\[0\]: expected module:Class.*No module named 'nowhere'"),
            ("hooked_game:Gone", r"callbacks\[0\]: expected module:Class.*no attribute 'Gone'"),
            (GAME, r"callbacks\[0\]: .*expected a subclass of bray.Callback"),
            ({"clas": "a:B"}, r"callbacks\[0\]\.clas: unknown key, did you mean 'class'\?"),
            ({"settings": {}}, r"callbacks\[0\]\.class: expected module:Class"),
            (
                {"class": "hooked_game:Notes", "settings": [1]},
                r"callbacks\[0\]\.settings: expected settings by name, got \[1\]",
            ),
            (
                {"class": "hooked_game:Notes", "settings": {"stop": 1}},
                r"hooked_game:Notes does not take its settings: .*'stop'",
            ),
            (
                {"class": "hooked_game:Configured", "settings": {"every": "x"}},
                r"callbacks\[0\]\.settings: every: expected a whole number, got 'x'",
            ),
        ],
    )
    def test_wrong_ones_are_refused_when_it_is_loaded(
        self, tmp_path: Path, entry: Any, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            load(str(template(tmp_path, callbacks=[entry])))

    def test_one_that_cannot_be_made_says_why(self) -> None:
        with pytest.raises(ConfigError, match="Broken cannot be made: OSError: no disk"):
            make_callbacks([f"{Broken.__module__}:Broken"])

    def test_the_viewer_imports_none_of_them(self, tmp_path: Path) -> None:
        """A text from a browser is checked without running what it names."""
        text = template(
            tmp_path, callbacks=["nowhere:Notes"], source={"curriculum": "nowhere:f"}
        ).read_text()
        assert parse(text, "template").callbacks == ("nowhere:Notes",)


class TestCurriculum:
    @pytest.mark.parametrize("processes", [0, 1])
    def test_difficulty_follows_the_frames(self, tmp_path: Path, processes: int) -> None:
        found = episodes_of(tmp_path, curriculum=CURRICULUM, num_processes=processes)
        seen = [episode.metrics["difficulty"] for episode in found]
        assert sorted(set(seen)) == [0.0, 0.5, 1.0]
        assert seen[:8] == [0.0] * 8
        assert seen[-8:] == [1.0] * 8

    def test_gamecores_that_are_processes_repeat_it(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"curriculum": CURRICULUM, "num_processes": 2, "num_envs": 2}
        first = episodes_of(tmp_path / "a", **settings)
        assert episodes_of(tmp_path / "b", **settings) == first

    def test_a_resumed_trial_goes_on_where_it_was(self, tmp_path: Path) -> None:
        function = "hooked_game:by_progress"
        run_ppo(tmp_path, 1024, curriculum=function)
        run_ppo(tmp_path, 1280, Notes(), curriculum=function)
        assert {episode.metrics["difficulty"] for episode in told("episode")} == {1.0}

    def test_an_off_policy_run_has_one_too(self, tmp_path: Path) -> None:
        with bray.init(tmp_path, "trial") as run:
            run.listen(Notes())
            made = DQN.of(GAME, num_envs=4, curriculum=CURRICULUM, info_metrics=("success",))
            made.train(run, goal=Goal(max_frames=640, evaluation_episodes=2))
        assert told("episode")[-1].metrics["difficulty"] == 1.0

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("nothing", "curriculum: expected schedules by name, or module:function"),
            ({"a": 3}, r"curriculum\.a: expected a schedule such as .*, got 3"),
            ({"a": {"start": 1, "end": 2}}, r"curriculum\.a: frames: missing"),
            ({"a": {"start": 1, "end": 2, "frames": 0}}, r"frames: expected more than 0, got 0"),
            ({"a": {"start": 1, "end": 2, "frames": 9, "shape": "up"}}, "shape: expected one of"),
        ],
    )
    def test_what_is_none_is_refused(self, setting: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            PPO.of(GAME, curriculum=setting)

    def test_games_that_take_no_options_have_none(self) -> None:
        with pytest.raises(ConfigError, match="curriculum: expected none for Atari games"):
            PPO.of("ALE/Pong-v5", curriculum=CURRICULUM)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("nowhere:f", "source.curriculum: expected module:function.*No module named"),
            ("hooked_game:GAME", "source.curriculum: expected module:function.*no attribute"),
        ],
    )
    def test_a_function_that_is_not_there_is_refused(self, name: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Curriculum(name)

    def test_a_function_that_raises_is_named(self, tmp_path: Path) -> None:
        words = r"^source\.curriculum: hooked_game:fails_late: KeyError: 'late' \(hooked_game\.py"
        with pytest.raises(ConfigError, match=words):
            run_ppo(tmp_path, 512, curriculum="hooked_game:fails_late")

    def test_a_function_returns_settings(self) -> None:
        progress = Progress(frames=2048, seconds=0.0, figures={})
        assert Curriculum("hooked_game:by_progress").at(progress) == {"difficulty": 2}
        with pytest.raises(ConfigError, match="no_settings: expected finite numbers, words, lists"):
            Curriculum("hooked_game:no_settings").at(progress)
        with pytest.raises(ConfigError, match="expected settings by name, got <hooked_game"):
            Curriculum(GAME).at(progress)


class TestSchedules:
    def rates(self, folder: Path, frames: int, **settings: Any) -> list[float]:
        """Return the learning rate of each update of a run."""
        seen: list[float] = []
        with bray.init(folder, "trial") as run:
            trainers: list[Any] = []
            make = run.trainer

            def trainer(name: str, factory: Any, **options: Any) -> Any:
                trainers.append(make(name, factory, **options))
                return trainers[0]

            run.trainer = trainer  # type: ignore[method-assign]
            run.listen(
                lambda figures, save: seen.append(trainers[0].optimizer.param_groups[0]["lr"])
            )
            loaded = load(str(template(folder, **settings)))
            goal = Goal(max_frames=frames, evaluation_episodes=2)
            loaded.make().train(run, goal=goal)
        return [round(rate, 9) for rate in seen[:-1]]  # the last update is of the evaluation

    def test_a_resumed_trial_goes_on_with_its_learning_rate(self, tmp_path: Path) -> None:
        whole = [1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4, 1e-4]
        settings = {"trainer": {"learning_rate": RATE}}
        assert self.rates(tmp_path, 768, **settings) == whole[:3]
        assert self.rates(tmp_path, 1536, **settings) == whole[3:]

    def test_a_changed_schedule_counts_in_a_resumed_trial(self, tmp_path: Path) -> None:
        self.rates(tmp_path, 512)
        settings = {"trainer": {"learning_rate": RATE}}
        assert self.rates(tmp_path, 768, **settings) == [5.5e-4]

    @pytest.mark.parametrize(
        "fall", [{"learning_rate": RATE}, {"learning_rate": 1e-3, "anneal_frames": 1024}]
    )
    def test_a_resumed_trial_with_other_replays_goes_on_with_its_frames(
        self, fall: dict[str, Any], tmp_path: Path
    ) -> None:
        wide = {**fall, "steps_per_replay": 512, "minibatch_size": 256}
        narrow = {**fall, "steps_per_replay": 256, "minibatch_size": 256}
        assert self.rates(tmp_path, 512, trainer=narrow) == [1e-3, 7.75e-4]
        assert self.rates(tmp_path, 1024, trainer=wide) == [5.5e-4]
        assert self.rates(tmp_path, 1536, trainer=narrow) == [1e-4, 1e-4]

    def test_a_changed_rate_is_annealed_in_a_resumed_trial(self, tmp_path: Path) -> None:
        fall = {"learning_rate": 1e-3, "anneal_frames": 1024}
        assert self.rates(tmp_path, 512, trainer=fall) == [1e-3, 7.75e-4]
        settings = {"learning_rate": 1e-5, "anneal_frames": 1024}
        assert self.rates(tmp_path, 768, trainer=settings) == [5.5e-6]

    def test_clip_and_entropy_follow_one(self, tmp_path: Path) -> None:
        half = {"start": 0.2, "end": 0.1, "frames": 512}
        loaded = load(str(template(tmp_path, trainer={"clip": half, "entropy_coefficient": half})))
        assert loaded.parts.trainer.clip.at(256) == pytest.approx(0.15)
        assert run_ppo(tmp_path, 512, clip=loaded.parts.trainer.clip).frames == 512

    def test_a_population_follows_one_through_a_resumed_trial(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rates: list[float] = []
        tell = EvolutionStrategy.tell

        def noted(strategy: EvolutionStrategy, fitness: Any) -> dict[str, float]:
            found = tell(strategy, fitness)
            rates.append(round(strategy._adam.param_groups[0]["lr"], 9))
            return found

        monkeypatch.setattr(EvolutionStrategy, "tell", noted)
        monkeypatch.setattr(es, "evaluate_latest", lambda *_, **__: [8.0] * 2)
        fall = Schedule(start=0.08, end=0.02, frames=96)  # episodes of 8 steps: 32 a generation
        for frames in (64, 160):
            with bray.init(tmp_path, "trial") as run:
                made = ES.of(GAME, population=4, learning_rate=fall)
                made.train(run, goal=Goal(max_frames=frames, evaluation_episodes=2))
        assert rates == [0.08, 0.06, 0.04, 0.02, 0.02]

    @pytest.mark.parametrize("algorithm", [DQN, PQN])
    def test_exploration_follows_one(self, algorithm: Any, tmp_path: Path) -> None:
        fall = Schedule(start=0.8, end=0.1, frames=512, shape="constant")
        few = {"steps_per_replay": 256, "minibatch_size": 256} if algorithm is PQN else {}
        for number, (epsilon, last) in enumerate([(fall, 0.1), (0.3, 0.3)]):
            with bray.init(tmp_path, f"trial-{number}") as run:
                made = algorithm.of(GAME, num_envs=4, epsilon=epsilon, **few)
                made.train(run, goal=Goal(max_frames=1280, evaluation_episodes=2))
                weights = run.models["policy"].weights()[1]
            assert float(weights["epsilon"]) == pytest.approx(last)
        with pytest.raises(ConfigError, match=r"epsilon: expected 0 to 1, got 1.5"):
            algorithm.of(GAME, epsilon=1.5)

    def test_it_is_not_annealed_besides(self, tmp_path: Path) -> None:
        wrong = {"learning_rate": RATE, "anneal_frames": 100}
        with pytest.raises(SettingsError, match="anneal_frames: expected 0 with a schedule"):
            load(str(template(tmp_path, trainer=wrong)))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"start": 0, "end": 1, "frames": 5}, "learning_rate.start: expected more than 0"),
            ({"start": 1, "end": 1}, "learning_rate.frames: missing"),
            ({"start": 1, "end": 1, "frames": 5, "shap": 1}, "learning_rate.shap: unknown key"),
            ("fast", "expected a number or {start, end, frames, shape}, got 'fast'"),
        ],
    )
    def test_what_is_no_schedule_is_refused(self, tmp_path: Path, value: Any, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            load(str(template(tmp_path, trainer={"learning_rate": value})))


def test_a_metric_that_is_no_number_ends_the_run_in_words(tmp_path: Path) -> None:
    with pytest.raises(BrayError, match="info: metrics: own: expected a finite number, got nan"):
        run_ppo(tmp_path, 512, kwargs={"metric": float("nan")})


def test_the_game_is_one() -> None:
    assert HookedGame().reset(options={"difficulty": 2})[1] == {}
