"""bray's board games as environments of two agents, against PettingZoo's own."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.classic.connect_four.connect_four import env as connect_four_env

from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.turn_game import TurnGame
from bray_core.errors import ConfigError


def test_connect_four_is_that_of_pettingzoo() -> None:
    ours = MultiAgentSpec(environment="bray.games.board_game:connect_four").make()
    theirs = TurnGame(connect_four_env())
    draws, ends = np.random.default_rng(3), set()
    for _ in range(30):
        mine, other = ours.reset(0), theirs.reset(0)
        while True:
            assert set(mine) == set(other)
            for agent, tick in mine.items():
                assert (tick.reward, tick.terminated) == (
                    other[agent].reward,
                    other[agent].terminated,
                )
            if len(mine) == 2:
                ends.add(mine["player_0"].reward)
                break
            ((agent, tick),) = mine.items()
            seen = other[agent].observation
            mask = tick.observation["action_mask"]
            np.testing.assert_array_equal(mask, seen["action_mask"])
            planes = np.moveaxis(seen["observation"], -1, 0)
            np.testing.assert_array_equal(tick.observation["observation"], planes)
            action = np.asarray(draws.choice(np.flatnonzero(mask)))
            mine, other = ours.step({agent: action}), theirs.step({agent: action})
    assert ends == {1.0, -1.0}


def test_a_draw_pays_nobody_and_a_wrong_move_is_named() -> None:
    game = MultiAgentSpec(environment="bray.games.board_game:tic_tac_toe").make()
    game.reset()
    for k, cell in enumerate([0, 1, 2, 4, 3, 5, 7, 6, 8]):
        ticks = game.step({f"player_{k % 2}": np.asarray(cell)})
    assert [tick.reward for tick in ticks.values()] == [0.0, 0.0]
    game.reset()
    game.step({"player_0": np.asarray(4)})
    with pytest.raises(ConfigError, match=r"action: .* got 4 in game 0: the policy is to mask"):
        game.step({"player_1": np.asarray(4)})
