"""Data sets to learn from: transitions of episodes, Minari data sets and tables, and mixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bray.algorithms import dqn
from bray.sources import data_sets, demonstrations
from bray.sources.data_set_readers import python_episodes
from bray.sources.environments import read_spaces
from bray.sources.replay_beginning import ReplayBeginning
from bray.training.off_policy.offline import RecordedSourceConfig
from bray_actor import PolicyActor, PolicyConfig, Recorder, segment_spec
from bray_actor.spaces import of_gymnasium
from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import codec
from bray_core.action_vector import step_specs
from bray_core.errors import ConfigError, NotFoundError, SpecError
from bray_core.layout import Layout
from bray_core.protocols import Answer
from bray_server import InProcessClient

pytestmark = pytest.mark.usefixtures("evaluated_here")

SPACES = read_spaces("CartPole-v1")
GAMMA = 0.9


class Right:
    """Always pushes to the right."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        return Answer({"logits": np.float32([-20, 20]), "value": np.float32(0)}, 0)


def seen(at: int) -> Any:
    return np.full(4, at, np.float32)


def write(folder: Path, end: dict[str, Any] | None) -> None:
    """Record an episode of three steps with the rewards 1, 2, 3; None: the session is lost."""
    recorder = Recorder(folder)
    actors = recorder.record(PolicyActor.factory(Right(), PolicyConfig()))
    client = InProcessClient(actors)
    client.start("session", codec.encode({}))
    for at in range(3):
        reward = {"reward": float(at)} if at else {}
        client.tick("session", codec.encode({"observation": seen(at), **reward}))
    if end is not None:
        client.end("session", codec.encode({"reward": 3.0, **end}))
    client.close()
    recorder.close()


def rows(where: str, leaves: Any = data_sets.TRANSITION) -> dict[str, Any]:
    data = data_sets.open_data_set(where, SPACES, gamma=GAMMA, leaves=leaves)
    found: dict[str, Any] = data.steps(0, leaves)
    order = np.argsort(found["observation"][:, 0])
    return {name: leaf[order] for name, leaf in found.items()}


def assert_same_steps(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare all but what follows a terminated step, of which nothing is learnt."""
    for name, leaf in wanted.items():
        known = slice(None)
        if name == "next_observation":
            known = wanted["discount"] > 0
        np.testing.assert_allclose(found[name][known], leaf[known])
        assert found[name].dtype == leaf.dtype


@pytest.mark.parametrize(
    ("end", "discount", "last"),
    [
        ({"terminated": True}, [GAMMA, GAMMA, 0], None),
        ({"terminated": True, "observation": seen(3)}, [GAMMA, GAMMA, 0], None),
        ({"terminated": True, "observation": np.full(2, np.nan)}, [GAMMA, GAMMA, 0], None),
        ({"truncated": True, "observation": seen(3)}, [GAMMA, GAMMA, GAMMA], 3),
        (None, [GAMMA, GAMMA], 2),
    ],
)
def test_transitions_end_where_an_episode_terminated(
    tmp_path: Path, end: dict[str, Any] | None, discount: list[float], last: int | None
) -> None:
    write(tmp_path, end)
    found = rows(str(tmp_path))
    count = len(discount)
    assert found["discount"].tolist() == pytest.approx(discount)
    assert found["reward"].tolist() == [1, 2, 3][:count]
    assert found["observation"][:, 0].tolist() == [0, 1, 2][:count]
    known = slice(None) if last is not None else slice(-1)
    assert found["next_observation"][known, 0].tolist() == [1, 2, 3][: count - (last is None)]
    assert np.isfinite(found["next_observation"]).all()
    assert found["action"].tolist() == [1] * count
    cloned = rows(str(tmp_path), data_sets.DEMONSTRATION)
    assert len(cloned["action"]) == 3, "what to imitate needs no outcome"


@pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning")
def test_a_minari_data_set_gives_the_same_steps(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    minari = pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for number, ends in enumerate(({"terminated": True}, {"truncated": True})):
        flags = [False, False, True]
        buffer = EpisodeBuffer(
            observations=np.stack([seen(at) for at in range(4)]),
            actions=np.ones(3, np.int64),
            rewards=[1.0, 2.0, 3.0],
            terminations=flags if "terminated" in ends else [False] * 3,
            truncations=flags if "truncated" in ends else [False] * 3,
        )
        env = gymnasium.make("CartPole-v1")
        minari.create_dataset_from_buffers(
            f"three/steps{number}-v0",
            [buffer],
            env=env,
            observation_space=gymnasium.spaces.Box(-9, 9, (4,)),
        )
        folder = tmp_path / f"{number}"
        write(folder, {**ends, "observation": seen(3)})
        for leaves in (data_sets.TRANSITION, data_sets.DEMONSTRATION):
            wanted, found = (
                rows(str(folder), leaves),
                rows(f"minari:three/steps{number}-v0", leaves),
            )
            assert set(found) == set(wanted) == set(leaves)
            assert_same_steps(found, wanted)
        assert data_sets.mean_return([f"minari:three/steps{number}-v0"], SPACES) == 6
    with pytest.raises(NotFoundError, match="minari download nobody/has-v0"):
        rows("minari:nobody/has-v0")


@pytest.mark.filterwarnings("ignore:.*None:UserWarning")
def test_choices_of_a_minari_data_set_are_numbered_as_in_play(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    minari = pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    space = gymnasium.spaces.Dict(
        {
            "one": gymnasium.spaces.Discrete(3, start=2),
            "some": gymnasium.spaces.MultiDiscrete([2, 3], start=[1, 4]),
        }
    )
    buffer = EpisodeBuffer(
        observations={"one": np.array([2, 3, 4]), "some": np.array([[1, 4], [2, 6], [1, 5]])},
        actions=np.ones(2, np.int64),
        rewards=[1.0, 1.0],
        terminations=[False, True],
        truncations=[False, False],
    )
    minari.create_dataset_from_buffers(
        "from/start-v0",
        [buffer],
        observation_space=space,
        action_space=gymnasium.spaces.Discrete(2),
    )
    spaces = of_gymnasium("start", space, gymnasium.spaces.Discrete(2))
    data = data_sets.open_data_set("minari:from/start-v0", spaces, gamma=GAMMA)
    found: Any = data.steps(0, data_sets.TRANSITION)
    assert found["observation"]["one"].tolist() == [0, 1]
    assert found["next_observation"]["one"].tolist() == [1, 2]
    assert found["observation"]["some"].tolist() == [[0, 0], [1, 2]]


def table(path: Path, *without: str) -> None:
    """Write the three steps as a Parquet file of two row groups."""
    columns: dict[str, Any] = {
        "observation": pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(np.concatenate([seen(at) for at in range(3)])), 4
        ),
        "next_observation": pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(np.concatenate([seen(at) for at in range(1, 4)])), 4
        ),
        "action": [1, 1, 1],
        "reward": [1.0, 2.0, 3.0],
        "terminated": [False, False, True],
    }
    kept = {name: column for name, column in columns.items() if name not in without}
    pyarrow.parquet.write_table(pyarrow.table(kept), path)


def test_a_table_gives_the_same_steps(tmp_path: Path) -> None:
    write(tmp_path / "episodes", {"terminated": True, "observation": seen(3)})
    (tmp_path / "tables").mkdir()
    table(tmp_path / "tables" / "a.parquet")
    wanted = rows(str(tmp_path / "episodes"))
    for where in (tmp_path / "tables", tmp_path / "tables" / "a.parquet"):
        assert_same_steps(rows(str(where)), wanted)
    assert np.isnan(data_sets.mean_return([str(tmp_path / "tables")], SPACES))


def test_a_table_without_rewards_can_be_cloned_only(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", "reward", "next_observation", "terminated")
    found = rows(str(tmp_path / "a.parquet"), data_sets.DEMONSTRATION)
    assert len(found["action"]) == 3
    assert np.isnan(found["return"]).all()
    with pytest.raises(ConfigError, match=r"a\.parquet has no 'reward', but observation, action"):
        rows(str(tmp_path / "a.parquet"))


def test_batches_are_mixed_by_their_shares(tmp_path: Path) -> None:
    write(tmp_path / "lost", None)
    write(tmp_path / "whole", {"terminated": True})
    buffer = data_sets.buffer_of(
        {str(tmp_path / "lost"): 1.0, str(tmp_path / "whole"): 3.0},
        SPACES,
        leaves=data_sets.TRANSITION,
        gamma=GAMMA,
        batch_size=1,
        seed=1,
    )
    last = [float(buffer.pop().tree["reward"][0]) == 3 for _ in range(600)]
    buffer.close()
    assert np.mean(last) == pytest.approx(0.75 / 3, abs=0.06)


def test_bad_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"demonstrations: .* are minari:NAME, \.parquet"):
        rows(str(tmp_path))
    with pytest.raises(ConfigError, match="mixture: play: expected a share above 0, got 0"):
        RecordedSourceConfig(environment="CartPole-v1", mixture={"expert": 1, "play": 0})
    source = RecordedSourceConfig(environment="CartPole-v1", mixture={"minari:a-v0": 1, "b": 2})
    assert source.where == {"minari:a-v0": 1, str(Path("b").resolve()): 2}


def _episode(**changed: Any) -> list[dict[str, Any]]:
    whole = {
        "observation": np.stack([seen(at) for at in range(4)]),
        "action": np.ones(3, np.int64),
        "reward": np.ones(3, np.float32),
        "terminated": True,
    }
    return [whole, {**whole, **changed}]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"action": [0, 2, 1]}, "step 1: action: expected choices from 0 to 1, got 2"),
        ({"action": [0, 1, -1]}, "step 2: action: expected choices from 0 to 1, got -1"),
        ({"action": np.zeros((3, 2), int)}, r"action: expected the shape \[\] of a step, got"),
        ({"reward": [0, np.nan, 1]}, "step 1: reward: expected finite numbers, got nan"),
        ({"observation": np.full((4, 4), np.inf)}, "step 0: observation: expected finite numbers"),
        ({"observation": np.zeros((4, 3))}, r"observation: expected the shape \[4\] of a step"),
        ({"action": [0, 1, 0.5]}, "action: expected whole numbers, got 0.5"),
    ],
)
def test_steps_that_nothing_can_learn_from_are_named(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], fault: str
) -> None:
    monkeypatch.setattr(python_episodes, "find_named_code", lambda *_: lambda: _episode(**changed))
    wanted = f"^mine:function episode 1: {fault}"
    with pytest.raises(SpecError, match=wanted):
        data_sets.open_data_set("objects:mine:function", SPACES, gamma=GAMMA).steps(
            1, data_sets.TRANSITION
        )
    buffer = data_sets.buffer_of(
        "objects:mine:function",
        SPACES,
        leaves=data_sets.TRANSITION,
        gamma=GAMMA,
        batch_size=6,
        seed=1,
    )
    with pytest.raises(SpecError, match=wanted):
        buffer.pop()
    buffer.close()


def test_numbers_of_another_type_are_what_they_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whole numbers stand for reals, and whole reals for the numbers of an image."""
    image = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    reals = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    for seen_space, number, wanted in ((reals, int, np.float32), (image, float, np.uint8)):
        rows = [[number(at), number(1)] for at in range(3)]
        made = [{"observation": rows, "action": [[1, 0], [0, 1]], "reward": [1, 0]}]
        monkeypatch.setattr(python_episodes, "find_named_code", lambda *_, made=made: lambda: made)
        spaces = of_gymnasium("here", seen_space, reals)
        names = ["observation", "next_observation", "action"]
        columns = [
            pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.ravel(column)), 2)
            for column in (rows[:2], rows[1:], [[1, 0], [0, 1]])
        ]
        columns += [[1, 0], [0, 0]]
        pyarrow.parquet.write_table(
            pyarrow.table(dict(zip([*names, "reward", "terminated"], columns, strict=True))),
            tmp_path / "whole.parquet",
        )
        for where in ("objects:mine:function", str(tmp_path / "whole.parquet")):
            buffer = data_sets.buffer_of(
                where, spaces, leaves=data_sets.TRANSITION, gamma=GAMMA, batch_size=2, seed=1
            )
            batch = buffer.pop().tree
            buffer.close()
            assert batch["observation"].dtype == wanted
            assert sorted(batch["next_observation"].tolist()) == [[1, 1], [2, 1]]
    beyond = [{**made[0], "observation": [[0, 1], [0, 300], [0, 1]]}]
    monkeypatch.setattr(python_episodes, "find_named_code", lambda *_: lambda: beyond)
    data = data_sets.open_data_set("objects:mine:function", spaces, gamma=GAMMA)
    with pytest.raises(SpecError, match="step 1: observation: expected whole numbers of uint8"):
        data.steps(0, data_sets.TRANSITION)


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (7, "mine:function: expected a sequence of episodes, got int"),
        (_episode(reward=1.0), r"episode 1: reward: expected one number for each step, .* \[\]"),
        (_episode(action=[[0], [1, 2], [0]]), "episode 1: action: expected lists of one length"),
        (_episode(action=["a", "b", "c"]), "episode 1: action: expected numbers, got <U1: "),
        (
            _episode(observation={"a": [None] * 4}),
            "episode 1: observation/a: expected numbers, got object",
        ),
    ],
)
def test_objects_that_are_no_episodes_are_told_as_they_are_opened(
    monkeypatch: pytest.MonkeyPatch, made: Any, fault: str
) -> None:
    monkeypatch.setattr(python_episodes, "find_named_code", lambda *_: lambda: made)
    with pytest.raises(ConfigError, match=f"^data set: (mine:function )?{fault}"):
        data_sets.open_data_set("objects:mine:function", SPACES, gamma=GAMMA)


def test_actions_beyond_their_bounds_are_clipped_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = gymnasium.spaces.Box(np.float32([-2, 0.1]), np.float32([2, np.inf]))
    mixed = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), bounds))
    force = np.array([[2.0001, 0.1], [-2, 7e9], [0, 0]])  # rounded at a bound, within, beyond
    clipped = [[2, 0.1], [-2, 7e9], [0, 0.1]]
    for space, action, wanted in (
        (bounds, force, clipped),
        (mixed, (np.int64([2, 0, 1]), force), np.column_stack(([2, 0, 1], clipped))),
    ):
        caplog.clear()
        made = _episode(action=action)[1:] * 2
        monkeypatch.setattr(python_episodes, "find_named_code", lambda *_, made=made: lambda: made)
        spaces = of_gymnasium("here", gymnasium.spaces.Box(-9, 9, (4,)), space)
        data = data_sets.open_data_set("objects:mine:function", spaces, gamma=GAMMA)
        for unit in (1, 0):
            found: Any = data.steps(unit, data_sets.DEMONSTRATION)
            np.testing.assert_allclose(found["action"], np.float32(wanted))
        (told,) = [record.getMessage() for record in caplog.records]
        assert told.startswith(
            "mine:function episode 1: step 2: action: expected 0.1 to inf, got 0: actions beyond "
            "the bounds, here of 1 of 3 steps, are clipped to them, as in play"
        )


@pytest.mark.parametrize("flags", [[False, False, False], np.array([False, False, True]), None])
def test_an_episode_says_once_whether_it_terminated(
    monkeypatch: pytest.MonkeyPatch, flags: Any
) -> None:
    made = _episode(terminated=flags)
    monkeypatch.setattr(python_episodes, "find_named_code", lambda *_: lambda: made)
    with pytest.raises(ConfigError, match=r"function episode 1: expected terminated to be true or"):
        rows("objects:mine:function")
    for one, discount in ((np.bool_(False), GAMMA), (1, 0)):
        made[0]["terminated"], made[1]["terminated"] = one, False
        assert rows("objects:mine:function")["discount"][-1] == pytest.approx(discount)


def test_a_single_choice_may_be_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _episode(action=np.int64([[1], [0], [1]]))
    monkeypatch.setattr(python_episodes, "find_named_code", lambda *_: lambda: made[1:])
    found = rows("objects:mine:function")
    assert found["action"].tolist() == [1, 0, 1]


def test_steps_are_read_once_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"terminated": True})
    read: list[Any] = []
    steps = demonstrations.steps
    monkeypatch.setattr(demonstrations, "steps", lambda *given: read.append(given) or steps(*given))
    for room, times in ((10_000, 1), (10, 3)):
        monkeypatch.setattr(data_sets, "_MOST_CACHED_BYTES", room)
        read.clear()
        data = data_sets.open_data_set(str(tmp_path), SPACES, gamma=GAMMA)
        source = data_sets.DataSetSource(data, data_sets.TRANSITION)
        for _ in range(3):
            (found,) = source.read([0])
            assert len(found["reward"]) == 3
        assert len(read) == times


def test_a_replay_begins_with_a_data_set(tmp_path: Path) -> None:
    """A batch has the transitions of the data set, each with its own discount."""
    for end in ("terminated", "truncated"):
        write(tmp_path / end, {end: True, "observation": seen(3)})
    (tmp_path / "tables").mkdir()
    table(tmp_path / "tables" / "a.parquet")
    for where, last in (("terminated", 0), ("truncated", GAMMA), ("tables", 0)):
        for length in (2, 8):
            layout = Layout(segment_spec(*step_specs(SPACES), length))
            config = ReplayConfig(
                unit="transition", batch_size=64, capacity=32, min_size=1, gamma=GAMMA, seed=1
            )
            buffer = ReplayBuffer(layout, config)
            assert ReplayBeginning(str(tmp_path / where), SPACES, GAMMA)(buffer) == 3
            batch = buffer.pop().tree
            for at in range(3):
                drawn = batch["observation"][:, 0] == at
                assert drawn.any()
                assert (batch["reward"][drawn] == at + 1).all()
                discount = last if at == 2 else GAMMA
                assert batch["discount"][drawn] == pytest.approx(discount)
                if discount:
                    assert (batch["next_observation"][drawn, 0] == at + 1).all()
            assert ReplayBeginning(str(tmp_path / where), SPACES, GAMMA)(buffer) == 0
            buffer.close()


def test_a_replay_of_a_memory_begins_with_nothing() -> None:
    with pytest.raises(ConfigError, match=r"memory_size: expected 0 with buffer.begin_with, .* 4"):
        dqn.DQN.of("CartPole-v1", begin_with="shown", memory_size=4)
