"""Episodes that people look at: in a window, or as a video."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from bray.trained.play_recorder import PlayRecorder
from bray.viewer.video import FORMATS, MAX_FRAMES, MOST_PIXELS, encode
from bray_actor.atari import make_atari
from bray_actor.environments.spec import MOST_STEPS, EnvironmentSpec
from bray_core.errors import BrayError, ConfigError
from bray_core.files.output_file import check_output

Pixels = npt.NDArray[np.uint8]
_FRAMES_PER_S = 30.0
DRAWING_S = 4.0
"""Time that the episode of a first launch may take to be played and drawn."""
DRAWN_PER_S = 25.0
"""Frames drawn for a second of that episode; a drawing is seen until the next one."""
_ATARI_ZOOM = 4
"""Width of a pixel of 84 × 84 on the screen."""


class PlaysEpisodes(Protocol):
    """What is asked for actions: `TrainedAgent`."""

    def act(self, observation: Any) -> Any:
        """Return the action for an observation."""
        ...

    def reset(self) -> None:
        """Begin a new episode."""
        ...

    @property
    def last_decision(self) -> dict[str, Any]:
        """What was decided by the last `act`, as `decisions.described` says it."""
        ...


def watch_episodes(
    agent: PlaysEpisodes,
    spec: EnvironmentSpec,
    episodes: int,
    *,
    seed: int,
    save: str | Path | None,
    default: Path,
    record: Path | None = None,
) -> list[float]:
    """Play episodes that are shown or saved; return their returns.

    Args:
        agent: what plays.
        spec: how the environment is made.
        episodes: number of episodes.
        seed: seed of the environment.
        save: file of the video; None: a window, or `default` where there is no screen.
        default: see `save`.
        record: folder in which what becomes a video is kept as recorded episodes, too; None keeps
            none.

    Raises:
        ConfigError: see `TrainedAgent.watch`.
    """
    if episodes < 1:
        raise ConfigError(f"episodes: expected 1 or more, got {episodes}")
    if save is None and _has_screen() and not spec.is_atari:
        env = _make(spec, "human")
        try:
            return [_play(agent, env, seed + i, lambda frame: None, None) for i in range(episodes)]
        finally:
            env.close()
    file = Path(save) if save is not None else default
    returns, shown = save_video(agent, spec, episodes, seed=seed, file=file, record=record)
    sys.stderr.write(
        f"wrote {file}: {shown} frames of {len(returns)} episode{'s'[: len(returns) != 1]}\n"
    )
    return returns


def save_video(
    agent: PlaysEpisodes,
    spec: EnvironmentSpec,
    episodes: int,
    *,
    seed: int,
    file: Path,
    record: Path | None = None,
) -> tuple[list[float], int]:
    """Play episodes into a video; return their returns, and the number of frames.

    Args:
        agent: what plays.
        spec: how the environment is made.
        episodes: number of episodes.
        seed: seed of the environment.
        file: file of the video.
        record: see `watch_episodes`.

    Raises:
        ConfigError: the environment draws nothing, or the file's kind is unknown.
    """
    check_video_file(file)
    frames: list[Pixels] = []

    def keep(frame: Pixels | None) -> None:
        if len(frames) < MAX_FRAMES:
            frames.append(pixels_of(frame) if frame is None else frame)

    returns, rate = _play_drawn(agent, spec, range(seed, seed + episodes), keep, record)
    write_video(file, frames, rate)
    return returns, len(frames)


def _play_drawn(
    agent: PlaysEpisodes,
    spec: EnvironmentSpec,
    seeds: Sequence[int],
    keep: Callable[[Pixels | None], None],
    record: Path | None,
) -> tuple[list[float], float]:
    """Play an episode of each seed; return their returns, and the frames a second."""
    env = _drawn(spec)
    try:
        rate = _rate(env)
        names = _action_names(env)
        returns = []
        for seed in seeds:
            recorder = None
            if record is not None:
                recorder = PlayRecorder(record, f"watched {seed}", rate, names)
            returns.append(_play(agent, env, seed, keep, recorder))
    finally:
        env.close()
    return returns, rate


def check_drawn(spec: EnvironmentSpec) -> None:
    """Refuse an environment that draws nothing.

    Raises:
        ConfigError: says why.
    """
    _drawn(spec).close()


def _drawn(spec: EnvironmentSpec) -> Any:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen all the same
    return _AtariGame(spec) if spec.is_atari else _make(spec, "rgb_array")


def record_drawn(agent: PlaysEpisodes, spec: EnvironmentSpec, folder: Path, *, seed: int) -> None:
    """Play one episode that is kept as a recorded one, with the environment's frames.

    After `DRAWING_S` seconds it is cut: some environments take long to draw. A quick one is drawn
    `DRAWN_PER_S` times for each of its seconds, because drawing takes longer than playing.

    Args:
        agent: what plays.
        spec: how the environment is made.
        folder: folder of the recorded episodes.
        seed: seed of the environment.

    Raises:
        ConfigError: the environment draws nothing.
    """
    env = _drawn(spec)
    try:
        rate = _rate(env)
        recorder = PlayRecorder(folder, f"played {seed}", rate, _action_names(env))
        every = max(1, round(rate / DRAWN_PER_S))
        _play(agent, env, seed, lambda frame: None, recorder, limit_s=DRAWING_S, draw_every=every)
    finally:
        env.close()


_TO_DRAW = (
    'it takes no `render_mode`: take it, name it in `metadata["render_modes"]`, and return an '
    "image [H, W, 3] from `render()`; `bray view` shows its episodes as numbers"
)


def _has_screen() -> bool:
    is_desktop = sys.platform in ("darwin", "win32")
    return is_desktop or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _make(spec: EnvironmentSpec, mode: str) -> Any:
    """Make the environment so that it draws.

    Raises:
        ConfigError: it cannot.
    """
    drawn = replace(spec, kwargs={**spec.kwargs, "render_mode": mode}, stepping="worker")
    words = f"environment: {spec} draws nothing (render_mode {mode!r})"
    try:
        with warnings.catch_warnings(action="ignore"):  # what is said here is said once
            env = drawn.make(reports=False)
    except ConfigError as error:
        takes_none = str(error).startswith("kwargs: ") and "render_mode" not in spec.kwargs
        raise ConfigError(f"{words}: {_TO_DRAW if takes_none else error}") from error
    if mode not in (env.metadata or {}).get("render_modes", ()):
        env.close()
        raise ConfigError(f"{words}: see its episodes as numbers with `bray view`")
    return env


def _play(
    agent: PlaysEpisodes,
    env: Any,
    seed: int,
    keep: Callable[[Pixels | None], None],
    recorder: PlayRecorder | None,
    limit_s: float = math.inf,
    draw_every: int = 1,
) -> float:
    """Play one episode of at most 10,000 steps, and of `limit_s` seconds; return its return.

    Steps between two drawings, `draw_every` steps apart, show the earlier one.
    """
    until_s = time.monotonic() + limit_s
    agent.reset()
    observation, _ = env.reset(seed=seed)
    frame = _frame(env)
    keep(frame)
    total, steps = 0.0, 0
    reward: Any = None
    terminated = truncated = False
    while not (terminated or truncated) and steps < MOST_STEPS:
        if steps and time.monotonic() > until_s:
            break
        action = agent.act(observation)
        if recorder is not None:
            got = None if reward is None else float(reward)
            recorder.tick(frame, agent.last_decision, observation=observation, reward=got)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        steps += 1
        if steps % draw_every == 0 or terminated or truncated:
            frame = _frame(env)
        keep(frame)
    if recorder is not None:
        ended = {"terminated": bool(terminated), "truncated": not terminated}
        is_whole = bool(terminated or truncated)
        recorder.finish(frame, {"reward": float(reward), **ended}, is_whole=is_whole)
    return total


def _action_names(env: Any) -> tuple[str, ...]:
    """Return what an environment calls its choices; none where it does not say it."""
    told = getattr(getattr(env, "unwrapped", None), "get_action_meanings", None)
    return tuple(map(str, told())) if callable(told) else ()


def _rate(env: Any) -> float:
    """Return the frames a second that an environment tells, or the usual ones."""
    told = env.metadata.get("render_fps")
    is_rate = isinstance(told, Real) and 0 < float(told) < math.inf
    return float(told) if is_rate else _FRAMES_PER_S


def _frame(env: Any) -> Pixels | None:
    """Return what an environment draws now; None: nothing, as one that has a window.

    Raises:
        ConfigError: it is no image.
    """
    drawn = env.render()
    return None if drawn is None else pixels_of(drawn)


def pixels_of(drawn: Any) -> Pixels:
    """Return a copy of an image that an environment drew.

    Raises:
        ConfigError: it is no image, or its numbers are not those of bytes, such as 0 to 1.
    """
    pixels = np.array(drawn)  # some draw into the same array again: copied
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    got = f"{type(drawn).__name__} of shape {list(pixels.shape)}"
    if is_image and pixels.size and pixels.dtype.kind in "iuf":
        low, high = pixels.min(), pixels.max()
        is_share = 0 <= low <= high <= 1 and pixels.any()
        if pixels.dtype == np.uint8 or (0 <= low <= high <= 255 and not is_share):
            return pixels.astype(np.uint8)
        got += f" of {pixels.dtype} from {low:g} to {high:g}"
        got += ": multiply it by 255" if is_share else ""
    raise ConfigError(
        f"environment: expected `render()` to return an image [H, W, 3] of bytes, got {got}"
    )


class _AtariGame:
    """A game as it is trained on, of which the newest frame that the policy sees is drawn."""

    metadata: ClassVar = {"render_fps": 15}

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._game = make_atari(spec.environment, 1)
        self._seen: Any = None

    def reset(self, seed: int) -> tuple[Any, Any]:
        """Begin an episode."""
        self._seen, info = self._game.reset(seed=seed)
        return self._seen[0], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Take an action."""
        self._seen, reward, terminated, truncated, info = self._game.step(np.asarray([action]))
        return self._seen[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Pixels:
        """Return the newest frame, larger."""
        grey = np.kron(self._seen[0][-1], np.ones((_ATARI_ZOOM, _ATARI_ZOOM), np.uint8))
        return np.repeat(grey[:, :, None], 3, 2)

    def close(self) -> None:
        """Close the game."""
        self._game.close()


def check_video_file(file: Path) -> None:
    """Refuse a file whose ending names no kind of video, or that cannot be written.

    Raises:
        ConfigError: names the kinds, or says why.
    """
    kind = file.suffix.lower().lstrip(".")
    if kind == "mp4":
        if shutil.which("ffmpeg") is None:
            raise ConfigError(f"save: {file}: .mp4 needs the program ffmpeg: install it, or .gif")
    elif kind not in FORMATS:
        known = ", ".join(f".{name}" for name in (*FORMATS, "mp4"))
        raise ConfigError(f"save: expected a file that ends in {known}, got {str(file)!r}")
    check_output("save", file)


def write_video(file: Path, frames: list[Pixels], rate: float) -> None:
    """Write frames `[H, W, 3]` as a video, so many a second.

    Raises:
        ConfigError: they are larger than a video of this kind can be.
    """
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    kind = file.suffix.lower().lstrip(".")
    if kind == "mp4":
        _write_mp4(file, frames, rate)
        return
    images: list[Image.Image] = [Image.fromarray(frame) for frame in frames]
    most, (width, height) = MOST_PIXELS[kind], images[0].size
    if max(width, height) > most:
        raise ConfigError(
            f"save: a .{kind} has at most {most:,} pixels in a row or column, and the environment "
            f"draws {width:,} × {height:,}: let it draw less"
        )
    file.write_bytes(encode(images, kind, min(50.0, max(1.0, rate))))


def _write_mp4(file: Path, frames: list[Pixels], rate: float) -> None:
    """Let ffmpeg write a video that browsers play: even sides, H.264."""
    from PIL import Image

    height, width = frames[0].shape[:2]
    command = ["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", str(rate), "-i", "-", "-pix_fmt", "yuv420p"]
    command += ["-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2", str(file.absolute())]
    equal = (Image.fromarray(frame).convert("RGB").resize((width, height)) for frame in frames)
    raw = b"".join(frame.tobytes() for frame in equal)
    done = subprocess.run(command, input=raw, capture_output=True, check=False)
    if done.returncode:
        raise BrayError(f"save: {file}: ffmpeg: {done.stderr.decode(errors='replace')[-500:]}")
