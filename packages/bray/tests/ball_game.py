"""A simulator of one's own, as tests start it: a ball falls, a paddle must be below it.

python ball_game.py --port N [--lanes N] [--first-lane N] [--tell 1] [--one-by-one 1] …
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

import numpy as np

from bray_core import codec
from bray_core.errors import ServiceError
from bray_server import Client, Request

SPACES = {"observation": {"shape": [3]}, "action": {"discrete": 3}}
ROWS, COLUMNS = 6, 5


class Lane:
    """Games that follow one another."""

    def __init__(self, number: int, options: Any) -> None:
        self.number, self.options = number, options
        self.random = random.Random(f"{options.seed}/{number}")
        self.games = 0
        self.begin()

    def begin(self) -> None:
        self.games += 1
        self.ball, self.row, self.paddle = self.random.randrange(COLUMNS), 0, 2

    @property
    def session(self) -> str:
        place = f"game-{self.options.seed}-{self.number}" if self.options.unnamed else self.number
        return f"{place}/{self.games}"

    def start(self) -> Request:
        told = {"spaces": SPACES} if self.options.tell else {}
        tags = {"tags": {"phase": self.options.phase}} if self.options.phase else {}
        return Request("start", self.session, codec.encode({**told, **tags}))

    @property
    def is_over(self) -> bool:
        return self.row == ROWS - 1

    def message(self, **more: Any) -> bytes:
        seen = np.array([self.ball / 2 - 1, self.row / 2.5 - 1, self.paddle / 2 - 1], np.float32)
        reward = (1.0 if self.paddle == self.ball else -1.0) if self.is_over else 0.0
        return codec.encode({"observation": seen, "reward": reward, **more})

    def tick(self) -> Request:
        return Request("tick", self.session, self.message())

    def take(self, reply: bytes) -> None:
        move = int(codec.decode(reply)["action"]) - 1
        self.paddle = min(max(self.paddle + move, 0), COLUMNS - 1)
        self.row += 1

    def end(self) -> Request:
        return Request("end", self.session, self.message(terminated=True))


def ask(client: Client, requests: list[Request], *, one_by_one: bool) -> list[bytes]:
    groups = [[request] for request in requests] if one_by_one else [requests]
    replies = [reply for group in groups for reply in client.exchange(group)]
    for reply in replies:
        if isinstance(reply, ServiceError):
            raise reply
    return [reply for reply in replies if isinstance(reply, bytes)]


def connect(address: str) -> Client:
    """Wait for the server, as a simulator does that is there before it."""
    for _ in range(300):
        try:
            return Client(address, timeout_s=900)
        except ServiceError:
            time.sleep(0.1)
    return Client(address, timeout_s=900)


def play(options: Any) -> None:
    client = connect(options.address or f"tcp://127.0.0.1:{options.port}")
    lanes = [Lane(options.first_lane + i, options) for i in range(options.lanes)]
    with client:
        one_by_one = bool(options.one_by_one)
        ask(client, [lane.start() for lane in lanes], one_by_one=one_by_one)
        while True:
            replies = ask(client, [lane.tick() for lane in lanes], one_by_one=one_by_one)
            for lane, reply in zip(lanes, replies, strict=True):
                lane.take(reply)
            over = [lane for lane in lanes if lane.is_over]
            ask(client, [lane.end() for lane in over], one_by_one=one_by_one)
            for lane in over:
                lane.begin()
            ask(client, [lane.start() for lane in over], one_by_one=one_by_one)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address")
    parser.add_argument("--phase", default="")
    for name in ("port", "seed", "first-lane", "tell", "one-by-one", "unnamed"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=1)
    try:
        play(parser.parse_args(arguments))
    except ServiceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
