"""What a loop costs an environment step, beside Stable-Baselines3 and PufferLib.

    uv run python -m benchmarks.micro.loop_cost [--rounds 5] [--num-envs 16]

The environment costs nothing, and neither does the network: what is left is the vector that steps
Gymnasium environments in one process (`stepping`), and the loop that draws actions and records
what came of them (`loop`): bray's `Runner` on its `SerialEnvironments` into segments, and SB3's
`PPO.collect_rollouts` into its rollout buffer. PufferLib's loop is not measured: it is one with
its network. Each peer runs in an environment of its own (uv fetches it), by
`peers/loop_<peer>.py`; one after the other in each round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace

from benchmarks.harness import PEERS, Report, argument, in_turns, main

TORCH = "torch==2.15.0"
PACKAGES: dict[str, tuple[str, ...]] = {
    "sb3": ("numpy", TORCH, "stable-baselines3==2.9.2"),
    "pufferlib": ("torch==2.9.0", "pufferlib-core==3.0.23"),
}
NAMES = {"bray": "bray", "sb3": "SB3", "pufferlib": "PufferLib"}


def command(peer: str) -> list[str]:
    """Return what runs a peer's script."""
    script = str(PEERS / f"loop_{peer}.py")
    if peer == "bray":
        return [sys.executable, script]
    uv = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    return [*uv, *(part for package in PACKAGES[peer] for part in ("--with", package)), script]


def measured(peer: str, options: Namespace) -> dict[str, float] | str:
    """Measure one peer once; where it does not run, return why."""
    arguments = ["--num-envs", str(options.num_envs), "--seconds", str(options.seconds)]
    done = subprocess.run(
        [*command(peer), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": ""},
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def installed(options: Namespace) -> list[str]:
    """Return the contenders that run here; of the others print why not."""
    found = ["bray"]
    for peer in [name for name in PACKAGES if name in options.only.split(",")]:
        answer = measured(peer, Namespace(num_envs=options.num_envs, seconds=0.1))
        if isinstance(answer, str):
            print(f"{NAMES[peer]}: not installable: {answer}")
        else:
            found.append(peer)
    return found


def benchmark(options: Namespace, report: Report) -> None:
    """Print a table of the vectors and one of the loops."""
    ways = {peer: lambda peer=peer: measured(peer, options) for peer in installed(options)}
    found = in_turns(ways, options.rounds)
    for what in ("stepping", "loop"):
        rounds = {
            NAMES[peer]: [1e6 / figures[what] for figures in of if isinstance(figures, dict)]
            for peer, of in found.items()
            if any(isinstance(figures, dict) and what in figures for figures in of)
        }
        report.table(what, rounds, unit="µs an environment step", base="bray")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--num-envs", type=int, default=16, help="environments of a vector"),
        argument("--only", default="sb3,pufferlib", help="peers, with commas"),
        rounds=5,
        seconds=1.0,
    )
