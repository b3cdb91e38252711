"""An environment that costs next to nothing, and the rate at which something steps it."""

from __future__ import annotations

import argparse
import json
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 200


class Trivial(gymnasium.Env):  # type: ignore[type-arg]
    """Four numbers that never change, two actions, episodes of 200 steps."""

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self._numbers = np.zeros(4, np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._steps = 0
        return self._numbers, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self._steps += 1
        return self._numbers, 1.0, self._steps == LENGTH, False, {}


def options() -> Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    return parser.parse_args()


def rate(call: Callable[[], object], steps: int, seconds: float) -> float:
    """Return environment steps per second: the best of ten stretches, as other work only slows."""
    call()
    rates = []
    for _ in range(10):
        calls, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds / 10:
            call()
            calls += 1
        rates.append(calls * steps / took)
    return max(rates)


def show(**figures: float) -> None:
    """Print the figures as one line of JSON."""
    print(json.dumps(figures), flush=True)
