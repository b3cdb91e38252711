"""What several agents' segments hold is what stepping the plain environment by hand gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playing_models import Hashing, Kept

from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.pettingzoo_modules import import_known
from bray_actor.multi_agent.runner import MultiAgentRunner
from bray_actor.multi_agent.seat import FixedCast, Seat
from bray_actor.policy.policy_config import PolicyConfig
from bray_core import nested

SEED = 7


async def recorded(
    environment: MultiAgentEnvironment, steps: int
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Return what a runner recorded of each agent, step by step, and how many steps it told of."""
    buffers = {agent: Kept(environment.spaces(agent)) for agent in environment.agents}
    seats = {
        agent: Seat(
            name=agent,
            model=Hashing(environment.spaces(agent)),  # type: ignore[arg-type]
            config=PolicyConfig(),
            buffer=buffer,  # type: ignore[arg-type]
        )
        for agent, buffer in buffers.items()
    }
    runner = MultiAgentRunner([environment], FixedCast(seats), seed=SEED)
    told = await runner.run(steps)
    runner.cut()
    assert sum(runner.take_frames_by_seat().values()) == told
    runner.close()
    return {agent: list(steps_of(buffer.trees)) for agent, buffer in buffers.items()}, told


def steps_of(trees: list[Any]) -> Iterator[dict[str, Any]]:
    total, length = 0.0, 0
    for tree in trees:
        for k in range(int(tree["length"])):
            total, length = total + tree["reward"][k], length + 1
            names = ("observation", "action", "reward", "terminated", "truncated")
            yield {name: nested.map(lambda leaf, k=k: leaf[k], tree[name]) for name in names} | {
                "final": tree["final_observation"] if k == int(tree["length"]) - 1 else None
            }
        if tree["terminated"].any() or tree["truncated"].any():
            assert float(tree["episode_return"]) == pytest.approx(total, rel=1e-5)
            assert int(tree["episode_length"]) == length
            total, length = 0.0, 0
        else:
            assert np.isnan(tree["episode_return"])


def check_equal(got: Any, wanted: Any) -> None:
    assert nested.flatten(got).keys() == nested.flatten(wanted).keys()
    for path, leaf in nested.items(wanted):
        np.testing.assert_array_equal(nested.flatten(got)[path], np.asarray(leaf, np.float32))


def check_outcome(
    step: dict[str, Any], reward: float, terminated: bool, truncated: bool, following: Any
) -> None:
    assert step["reward"] == np.float32(reward)
    assert (step["terminated"], step["truncated"]) == (terminated, truncated)
    if step["final"] is not None and not terminated:
        check_equal(step["final"], following)
    elif step["final"] is not None:
        assert not any(leaf.any() for _, leaf in nested.items(step["final"]))


def taken(space: Any, action: Any) -> Any:
    if not action.shape and not space.shape:
        return int(action)
    return np.clip(action, space.low, space.high)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "kwargs", "steps"),
    [
        ("simple_tag_v3", {"max_cycles": 9}, 150),
        ("knights_archers_zombies_v11", {"max_cycles": 150, "spawn_delay": 2}, 700),
        ("pistonball_v6", {"n_pistons": 4, "max_cycles": 11}, 60),
        ("rps_v2", {}, 50),
    ],
)
async def test_all_at_once(name: str, kwargs: Any, steps: int) -> None:
    spec = MultiAgentSpec(environment=name, kwargs=kwargs)
    by_agent, told = await recorded(spec.make(), steps)
    assert told == sum(map(len, by_agent.values())) >= steps
    left = {agent: iter(each) for agent, each in by_agent.items()}
    env = import_known(name).parallel_env(**kwargs)
    seen, _ = env.reset(seed=SEED)
    replayed, games, counts = 0, 0, set()
    while replayed < told:
        counts.add(len(env.agents))
        now = {agent: next(left[agent]) for agent in env.agents}
        for agent, step in now.items():
            check_equal(step["observation"], seen[agent])
        actions = {a: taken(env.action_space(a), step["action"]) for a, step in now.items()}
        seen, rewards, terminated, truncated, _ = env.step(actions)
        for agent, step in now.items():
            ends = terminated[agent], truncated[agent]
            check_outcome(step, rewards[agent], *ends, seen.get(agent))
        replayed += len(now)
        if not env.agents:
            games += 1
            seen, _ = env.reset()
    assert games >= 1
    if name.startswith("knights"):
        assert len(counts) > 1, "some died before the others"
    env.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["connect_four_v3", "tictactoe_v3"])
async def test_one_after_the_other(name: str) -> None:
    by_agent, told = await recorded(MultiAgentSpec(environment=name).make(), 80)
    assert told == sum(map(len, by_agent.values())) == 80
    left = {agent: iter(each) for agent, each in by_agent.items()}
    env = import_known(name).env()
    env.reset(seed=SEED)
    replayed, games = 0, 0
    under_way: dict[str, Any] = {}
    while replayed < told:
        agent = env.agent_selection
        seen, reward, terminated, truncated, _ = env.last()
        step = under_way.pop(agent, None)
        if step is not None:
            check_outcome(step, reward, terminated, truncated, seen)
            replayed += 1
        if terminated or truncated:
            env.step(None)
            if not env.agents:
                games += 1
                env.reset()
            continue
        step = next(left[agent], None)
        if step is None:
            break
        check_equal(step["observation"], seen)
        assert seen["action_mask"][step["action"]] == 1
        under_way[agent] = step
        env.step(int(step["action"]))
    assert replayed >= told - 2
    assert games >= 2


@pytest.mark.parametrize(
    "name", ["leduc_poker", "kuhn_poker(players=3)", "goofspiel(imp_info=True,num_cards=4)"]
)
async def test_games_of_open_spiel(name: str) -> None:
    import pyspiel

    by_agent, told = await recorded(MultiAgentSpec(environment=f"open_spiel:{name}").make(), 60)
    game = pyspiel.load_game(name)
    left = [iter(by_agent[f"player_{k}"]) for k in range(game.num_players())]
    chance = np.random.default_rng(SEED)
    finished, games = 0, 0
    while finished < told - game.num_players() + 1:
        state = game.new_initial_state()
        of_game = defaultdict(list)
        while not state.is_terminal():
            if state.is_chance_node():
                actions, shares = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(int(actions[chance.choice(len(actions), p=shares)]))
                continue
            at_once = state.is_simultaneous_node()
            players = range(game.num_players()) if at_once else [state.current_player()]
            joint = []
            for player in players:
                step = next(left[player], None)
                if step is None:  # the rest of the last game
                    return
                mask = np.zeros(game.num_distinct_actions(), np.int8)
                mask[state.legal_actions(player)] = 1
                tensor = np.reshape(state.information_state_tensor(player), -1)
                seen = step["observation"]
                check_equal(seen, {"observation": tensor, "action_mask": mask})
                of_game[player].append(step)
                joint.append(int(step["action"]))
                finished += 1
            if at_once:
                state.apply_actions(joint)
            else:
                state.apply_action(joint[0])
        for player, steps in of_game.items():
            assert [s["terminated"] for s in steps] == [False] * (len(steps) - 1) + [True]
            assert sum(s["reward"] for s in steps) == state.returns()[player]
            assert not any(s["truncated"] for s in steps)
        games += 1
    assert games > 3
