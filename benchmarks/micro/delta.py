"""Delta encoding of ticks: bytes a tick and microseconds, beside zstd-1, LZ4 and raw.

    uv run --with lz4 --with opencv-python-headless python -m benchmarks.micro.delta

Data: Pong's RAM, Pong in 84x84 grey frames of which four are stacked (`ale_py`, random actions),
and a vector of 4,000 float32 of which 3 % (and 30 %) change a tick, as a MOBA's units do. Every
decoded body is compared with the one that was encoded. Times are medians of encode + decode.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

import ale_py
import gymnasium
import numpy as np
from backports import zstd
from benchmarks.harness import Report, argument, main

from bray_server.wire.delta import DeltaDecoder, DeltaEncoder

LIMIT = 1 << 24


def played(environment: gymnasium.Env, ticks: int) -> Iterator[np.ndarray]:
    """Observations under random actions."""
    environment.action_space.seed(0)
    observation, _ = environment.reset(seed=0)
    for _ in range(ticks):
        yield observation
        observation, _, terminated, truncated, _ = environment.step(
            environment.action_space.sample()
        )
        if terminated or truncated:
            observation, _ = environment.reset()
    environment.close()


def ram(ticks: int) -> Iterator[bytes]:
    """Pong's 128 bytes."""
    for observation in played(gymnasium.make("ALE/Pong-v5", obs_type="ram"), ticks):
        yield observation.tobytes()


def frames(ticks: int) -> Iterator[bytes]:
    """Pong's last four frames, 84 x 84 x 4 uint8."""
    environment = gymnasium.make("ALE/Pong-v5", frameskip=1)
    stack = np.zeros((84, 84, 4), np.uint8)
    for observation in played(gymnasium.wrappers.AtariPreprocessing(environment), ticks):
        stack = np.concatenate([stack[..., 1:], observation[..., None]], -1)
        yield stack.tobytes()


def moba(ticks: int, share: float) -> Iterator[bytes]:
    """4,000 float32 of which a share changes a tick, anywhere."""
    random = np.random.default_rng(0)
    vector = random.standard_normal(4000).astype(np.float32)
    for _ in range(ticks):
        yield vector.tobytes()
        changed = random.random(4000) < share
        vector[changed] += random.standard_normal(int(changed.sum())).astype(np.float32)


Codec = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def codecs() -> dict[str, Codec]:
    """Each with a new state."""
    import lz4.frame

    encoder, decoder = DeltaEncoder(LIMIT), DeltaDecoder(LIMIT)
    alone = zstd.ZstdCompressor(1)  # each body a frame of its own
    return {
        "raw": (bytes, bytes),
        "LZ4": (lz4.frame.compress, lz4.frame.decompress),
        "zstd-1": (lambda body: alone.compress(body, alone.FLUSH_FRAME), zstd.decompress),
        "bray's delta": (encoder.encode, decoder.decode),
    }


def measure(bodies: list[bytes]) -> dict[str, tuple[float, float]]:
    """Return mean bytes a tick and median microseconds of both ends, tick by tick in turns."""
    sizes: dict[str, list[int]] = {}
    times: dict[str, list[float]] = {}
    both = codecs()
    for body in bodies:
        for name, (encode, decode) in both.items():
            began = time.perf_counter()
            encoded = encode(body)
            decoded = decode(encoded)
            times.setdefault(name, []).append(time.perf_counter() - began)
            sizes.setdefault(name, []).append(len(encoded))
            if decoded != body:
                raise SystemExit(f"{name}: a body came back changed")
    return {name: (statistics.mean(sizes[name]), statistics.median(times[name])) for name in both}


def benchmark(options: Namespace, report: Report) -> None:
    """Print the table."""
    ticks = options.ticks
    gymnasium.register_envs(ale_py)
    data = {
        "Pong RAM": ram(ticks),
        "Pong 84x84x4": frames(ticks),
        "MOBA, 3 % change": moba(ticks, 0.03),
        "MOBA, 30 % change": moba(ticks, 0.3),
    }
    for title, bodies in data.items():
        figures = measure(list(bodies))
        print(f"{title:20}{'bytes a tick':>14}{'of raw':>9}{'us, both ends':>15}{'of zstd-1':>11}")
        for name, (size, spent) in figures.items():
            share = f"{size / figures['raw'][0]:9.2%}"
            ratio = spent / figures["zstd-1"][1]
            print(f"  {name:18}{size:14,.1f}{share}{spent * 1e6:15.1f}{ratio:10.2f}x")


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--ticks", type=int, default=2000))
