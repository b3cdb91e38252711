"""All sessions of a worker share one model: their ticks reach it in batches."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bray_actor import Agent, AgentActor, TickState
from bray_algo import PolicyValueMLP
from bray_core import codec
from bray_model import Model, ModelConfig
from bray_server import Client, Request, ServerThread

SESSIONS, TICKS = 32, 20


class Counting(torch.nn.Module):
    """Notes how often it is asked; on the class, for a model copies its module."""

    forwards: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.policy = PolicyValueMLP(4, 2, hidden=(8,))

    def forward(self, observation: Any) -> Any:
        self.forwards.append(len(observation))
        return self.policy(observation)


@pytest.mark.parametrize("inline", [False, True])
def test_ticks_of_many_sessions_are_few_forwards(inline: bool) -> None:
    class Policy(Agent):
        async def on_tick(self, state: TickState) -> Any:
            answer = await model.infer(state.observation)
            return int(answer.outputs["logits"].argmax())

    class Follower(Agent):
        async def on_tick(self, state: TickState) -> Any:
            return await state.wait("policy")

    config = ModelConfig(max_batch_size=SESSIONS, inline_below_us=10**9 if inline else 0)
    with Model(Counting(), np.zeros((1, 4), np.float32), config=config) as model:
        server = ServerThread(lambda s: AgentActor({"policy": Policy(), "follower": Follower()}))
        names = [str(number) for number in range(SESSIONS)]
        body = codec.encode(np.zeros(4, np.float32))
        with Client(server.addresses[0]) as client:
            client.exchange([Request("start", name, b"") for name in names])
            Counting.forwards.clear()
            for _ in range(TICKS):
                replies = client.exchange([Request("tick", name, body) for name in names])
                assert all(isinstance(reply, bytes) for reply in replies)
        server.close()
    # Alone goes at most the first; a frame may be read in two parts.
    assert len(Counting.forwards) <= 4 * TICKS < SESSIONS * TICKS / 4
