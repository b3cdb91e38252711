"""A session that ticks all the while: hostile_witness.py ADDRESS PID, asked over standard input.

For each line it prints, as JSON, the longest interval between two of its replies since the line
before: in seconds, and in seconds of CPU time of the server's process. The latter does not grow
because other programs keep this machine busy.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

import numpy as np

from bray_core import codec
from bray_server import Client

_REST_S = 0.0005


def cpu_clock(pid: int) -> int:
    """Return the id of the clock that counts a process's CPU time (`clock_getcpuclockid`)."""
    return (~pid << 3) | 2


def main() -> None:
    address, pid = sys.argv[1], int(sys.argv[2])
    clock = cpu_clock(pid)
    body = codec.encode({"observation": np.zeros(4, np.float32), "reward": 0.0})
    with Client(address, token=os.environ.get("HOSTILE_WITNESS_TOKEN"), timeout_s=120) as client:
        client.start("witness")
        longest, cpu, wall = [0.0, 0.0], time.clock_gettime(clock), time.monotonic()
        while True:
            client.tick("witness", body)
            cpu_now, wall_now = time.clock_gettime(clock), time.monotonic()
            longest = [max(longest[0], wall_now - wall), max(longest[1], cpu_now - cpu)]
            cpu, wall = cpu_now, wall_now
            if select.select([sys.stdin], [], [], _REST_S)[0]:
                if not sys.stdin.readline():
                    return
                print(json.dumps(longest), flush=True)
                longest = [0.0, 0.0]


if __name__ == "__main__":
    main()
