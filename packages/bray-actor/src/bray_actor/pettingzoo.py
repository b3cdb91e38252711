"""PettingZoo's parallel environments over the wire: one session per agent."""

from __future__ import annotations

from typing import Any

from bray_actor.exchange import exchange_bodies
from bray_actor.spaces import spec_of, to_action, to_arrays
from bray_core import codec
from bray_core.errors import ConfigError
from bray_server import Client, Request

_EMPTY = codec.encode({})


def play_parallel(
    environment: Any, address: str, *, episodes: int, seed: int = 0, timeout_s: float = 60.0
) -> list[dict[str, float]]:
    """Play a PettingZoo parallel environment; each agent of each game is a session.

    Sessions are named `game/agent`. An agent that leaves the game ends its session.

    Args:
        environment: a `pettingzoo.ParallelEnv`.
        address: `tcp://host:port` or `http://host:port` of actors.
        episodes: games to play.
        seed: of the first reset.
        timeout_s: of each exchange.

    Returns:
        Each game's return by agent.

    Raises:
        ServiceError: the server answered with an error.
    """
    if episodes < 1:
        raise ConfigError(f"episodes: expected 1 or more, got {episodes}")
    with Client(address, timeout_s=timeout_s) as client:
        return [
            _game(environment, client, game, seed if game == 0 else None)
            for game in range(episodes)
        ]


def _game(env: Any, client: Client, game: int, seed: int | None) -> dict[str, float]:
    observations, _ = env.reset(seed=seed)
    specs = {agent: spec_of(env.observation_space(agent)) for agent in env.agents}
    returns = dict.fromkeys(env.agents, 0.0)
    messages: dict[str, dict[str, Any]] = {
        agent: {"observation": to_arrays(specs[agent], observations[agent])} for agent in env.agents
    }
    exchange_bodies(client, [Request("start", f"{game}/{agent}", _EMPTY) for agent in env.agents])
    while env.agents:
        playing = list(env.agents)
        requests = [Request("tick", f"{game}/{a}", codec.encode(messages[a])) for a in playing]
        replies = exchange_bodies(client, requests)
        actions = {
            agent: to_action(env.action_space(agent), codec.decode(reply)["action"])
            for agent, reply in zip(playing, replies, strict=True)
        }
        observations, rewards, terminated, truncated, _ = env.step(actions)
        for agent in playing:
            returns[agent] += float(rewards[agent])
            messages[agent] = {
                "observation": to_arrays(specs[agent], observations[agent]),
                "reward": float(rewards[agent]),
                "terminated": bool(terminated[agent]),
                "truncated": bool(truncated[agent]),
            }
        gone = [agent for agent in playing if agent not in env.agents]
        exchange_bodies(
            client, [Request("end", f"{game}/{a}", codec.encode(messages[a])) for a in gone]
        )
    return returns
