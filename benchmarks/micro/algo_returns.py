"""Returns on [T=128, B=1024] beside a plain Python loop, a loop over rows, and TorchRL.

    OMP_NUM_THREADS=1 uv run python -m benchmarks.micro.algo_returns
    OMP_NUM_THREADS=1 uv run --no-project --python 3.11 --with torch==2.15.0 --with torchrl \\
        --with ./packages/bray-algo python -m benchmarks.micro.algo_returns

Each round times all of them in turn; the figures are medians over rounds, so that a ratio is of one
run. The plain loop is over lists of floats, converted before the clock starts, and full segments:
the quickest that Python alone can be. bray's functions get ragged lengths. TorchRL's get its own
layout `[B, T, 1]`; its `vtrace_advantage_estimate` gets log probabilities, ours their difference.
"""

from __future__ import annotations

import importlib.util
import math
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.harness import Report, argument, in_turns, main, timed_s
from torch import Tensor

from bray_algo import gae, vtrace
from bray_algo.returns.advantages import retrace, td_lambda, upgo

GAMMA, LAMBDA = 0.99, 0.95
Call = Callable[[], Any]


def data(num_steps: int, batch: int) -> dict[str, Tensor]:
    """Random steps of which one in fifty terminates."""
    torch.manual_seed(0)
    return {
        "reward": torch.randn(num_steps, batch),
        "value": torch.randn(num_steps, batch),
        "final_value": torch.randn(batch),
        "terminated": torch.rand(num_steps, batch) < 0.02,
    }


def plain_gae(reward: Any, value: Any, final_value: Any, terminated: Any) -> list[list[float]]:
    """GAE over T and B, a float at a time."""
    out = [[0.0] * len(final_value) for _ in reward]
    for b, following_value in enumerate(final_value):
        following = 0.0
        for t in range(len(reward) - 1, -1, -1):
            if terminated[t][b]:
                following = reward[t][b] - value[t][b]
            else:
                delta = reward[t][b] + GAMMA * following_value - value[t][b]
                following = delta + GAMMA * LAMBDA * following
            out[t][b] = following
            following_value = value[t][b]
    return out


def plain_vtrace(
    log_ratio: Any, reward: Any, value: Any, final_value: Any, terminated: Any
) -> tuple[list[list[float]], list[list[float]]]:
    """V-trace over T and B, a float at a time."""
    target = [[0.0] * len(final_value) for _ in reward]
    advantage = [[0.0] * len(final_value) for _ in reward]
    for b, following_value in enumerate(final_value):
        following = following_value
        for t in range(len(reward) - 1, -1, -1):
            rho = min(1.0, math.exp(log_ratio[t][b]))
            discount = 0.0 if terminated[t][b] else GAMMA
            v, r = value[t][b], reward[t][b]
            advantage[t][b] = rho * (r + discount * following - v)
            delta = rho * (r + discount * following_value - v)
            following = v + delta + discount * rho * (following - following_value)
            target[t][b] = following
            following_value = v
    return target, advantage


def rows_gae(reward: Tensor, value: Tensor, final_value: Tensor, terminated: Tensor) -> Tensor:
    """GAE as a loop over T on rows, as CleanRL's scripts write it."""
    advantages = torch.zeros_like(reward)
    lastgaelam: Any = 0
    for t in reversed(range(len(reward))):
        nextnonterminal = 1.0 - terminated[t].float()
        nextvalues = final_value if t == len(reward) - 1 else value[t + 1]
        delta = reward[t] + GAMMA * nextvalues * nextnonterminal - value[t]
        advantages[t] = lastgaelam = delta + GAMMA * LAMBDA * nextnonterminal * lastgaelam
    return advantages


def torchrl_calls(p: dict[str, Tensor], log_ratio: Tensor) -> dict[str, Call]:
    """TorchRL's functions on the same numbers, in its layout."""
    from torchrl.objectives.value import functional as rl

    def own(x: Tensor) -> Tensor:  # [T, B] -> [B, T, 1]
        return x.T.contiguous().unsqueeze(-1)

    following = torch.cat([p["value"][1:], p["final_value"][None]])
    columns = [own(x) for x in (p["value"], following, p["reward"])]
    done, log_pi = own(p["terminated"]), own(log_ratio)
    zeros = torch.zeros_like(log_pi)
    return {
        "gae torchrl": lambda: rl.vec_generalized_advantage_estimate(GAMMA, LAMBDA, *columns, done),
        "gae torchrl, loop": lambda: rl.generalized_advantage_estimate(
            GAMMA, LAMBDA, *columns, done
        ),
        "td_lambda torchrl": lambda: rl.vec_td_lambda_return_estimate(
            GAMMA, LAMBDA, *columns[1:], done
        ),
        "vtrace torchrl": lambda: rl.vtrace_advantage_estimate(
            GAMMA, log_pi, zeros, *columns, done
        ),
    }


def calls(num_steps: int, batch: int) -> dict[str, Call]:
    """Every function by name; the first word says what it computes."""
    p = data(num_steps, batch)
    log_ratio = 0.3 * torch.randn(num_steps, batch)
    full = torch.full((batch,), num_steps)
    ragged = torch.randint(1, num_steps + 1, (batch,))
    lists: dict[str, Any] = {name: tensor.tolist() for name, tensor in p.items()}
    ratios = log_ratio.tolist()
    found: dict[str, Call] = {
        "gae plain loop": lambda: plain_gae(**lists),
        "gae rows": lambda: rows_gae(**p),
        "gae bray": lambda: gae(**p, length=full, gamma=GAMMA, lambda_=LAMBDA),
        "gae bray, ragged": lambda: gae(**p, length=ragged, gamma=GAMMA, lambda_=LAMBDA),
        "vtrace plain loop": lambda: plain_vtrace(ratios, **lists),
        "vtrace bray": lambda: vtrace(log_ratio, **p, length=full, gamma=GAMMA),
        "vtrace bray, ragged": lambda: vtrace(log_ratio, **p, length=ragged, gamma=GAMMA),
        "td_lambda bray": lambda: td_lambda(**p, length=full, gamma=GAMMA, lambda_=LAMBDA),
        "upgo bray": lambda: upgo(**p, length=full, gamma=GAMMA),
        "retrace bray": lambda: retrace(
            log_ratio, action_value=p["value"], **p, length=full, gamma=GAMMA, lambda_=LAMBDA
        ),
    }
    if importlib.util.find_spec("torchrl"):
        found |= torchrl_calls(p, log_ratio)
    return found


def check(found: dict[str, Call]) -> None:
    """All that say they compute the same do."""
    for what in ("gae", "vtrace"):
        want = torch.as_tensor(found[f"{what} plain loop"]())
        rl = found.get(f"{what} torchrl")
        for name in (f"{what} bray", f"{what} rows"):
            got = found[name]() if name in found else None
            if got is not None:
                got = got if isinstance(got, Tensor) else torch.stack(tuple(got))
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        if rl is not None:
            out = rl()  # advantage and target
            other = out[0].squeeze(-1).T
            torch.testing.assert_close(
                other, want if what == "gae" else want[1], rtol=1e-3, atol=1e-3
            )


def benchmark(options: Namespace, report: Report) -> None:
    """Print a table for each kind of return."""
    found = calls(options.steps, options.batch)
    check(found)
    ways = {
        name: lambda name=name, call=call: 1e3 * timed_s(call, 1 if "plain" in name else 5)
        for name, call in found.items()
    }
    times = in_turns(ways, options.rounds)
    print(f"[T={options.steps}, B={options.batch}], {torch.get_num_threads()} thread(s)")
    for what in dict.fromkeys(name.split()[0] for name in times):
        rows = {name: each for name, each in times.items() if name.split()[0] == what}
        report.table(what, rows, unit="ms", base=f"{what} bray")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--steps", type=int, default=128),
        argument("--batch", type=int, default=1024),
        rounds=30,
    )
