r"""Draw the picture of the README: the loop with a trial's figures, and its policy playing.

    OMP_NUM_THREADS=1 uv run bray train ppo LunarLander-v3 steps_per_replay=4096 \
        segment_length=128 epochs=4 gamma=0.999 gae_lambda=0.98 entropy_coefficient=0.01 \
        learning_rate=6e-4 --goal 200 --frames 2000000 --trial lander
    uv run python scripts/front_picture.py trials/lander docs/playing.gif

Every number in the picture is read from the trial.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont, ImageSequence

import bray
from bray.viewer.metric_log import tail
from bray.viewer.project import newest_values
from bray_core.files.trial_folders import CONFIG

SIZE = (800, 270)
GAME = (400, 16, 384, 256)
"""Left, top, width and height of the game."""
EVERY = 4
"""Steps of the episode to a frame of the picture."""
FRAME_MS = 80
COLOURS = 64
PAPER, INK, FAINT, BOX, LINE, DOT = "#182033", "#e8ecf4", "#b5c2d9", "#1f4f8f", "#5d6f8f", "#ffd166"


class Part(NamedTuple):
    """A box of the loop."""

    left: int
    top: int
    words: Sequence[str]


def parts(values: Mapping[str, float], result: Mapping[str, float]) -> dict[str, Part]:
    """Return the boxes with their figures.

    Args:
        values: the newest value of each metric.
        result: the trial's `result.json`.
    """
    played = f"{values['actor/episodes']:,.0f} episodes"
    return {
        "gamecore": Part(16, 22, ("calls: start, tick, end", played)),
        "actor": Part(16, 172, (f"{values['actor/steps']:,.0f} ticks", "also in production")),
        "model": Part(
            146, 97, (f"version {values['trainer/policy_version']:,.0f}", forward(values))
        ),
        "trainer": Part(
            276, 22, (f"{values['trainer/steps']:,.0f} steps", f"in {minutes(result)}")
        ),
        "buffer": Part(276, 172, ("replays of", "fresh segments")),
    }


def forward(values: Mapping[str, float]) -> str:
    """Return how long a batch takes to answer."""
    return f"{values['model/batch_rows']:.0f} rows in {1000 * values['model/forward_s']:.1f} ms"


def minutes(result: Mapping[str, float]) -> str:
    """Return how long the training took."""
    return f"{result['seconds'] / 60:.0f} minutes"


WIDTH, HEIGHT = 112, 66
WIRES = [
    ((72, 88), (72, 172)),
    ((104, 172), (166, 163)),
    ((128, 222), (276, 222)),
    ((332, 172), (332, 88)),
    ((276, 62), (236, 97)),
]
"""From where to where things flow: ticks, inference, segments, batches, versions."""


def draw_loop(boxes: Mapping[str, Part], phase: float) -> Image.Image:
    """Return the loop at a moment; `phase` in 0 to 1 moves what flows in it."""
    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    title, small = ImageFont.load_default(14), ImageFont.load_default(10)
    for start, end in WIRES:
        draw.line([start, end], LINE, 2)
        x, y = (a + (b - a) * phase for a, b in zip(start, end, strict=True))
        draw.ellipse([x - 4, y - 4, x + 4, y + 4], DOT)
    for name, part in boxes.items():
        fill = "#5a4a1f" if name == "gamecore" else BOX
        draw.rounded_rectangle([part.left, part.top, part.left + WIDTH, part.top + HEIGHT], 8, fill)
        middle = part.left + WIDTH / 2
        draw.text((middle, part.top + 16), name, INK, title, "mm")
        for row, words in enumerate(part.words):
            draw.text((middle, part.top + 36 + 15 * row), words, FAINT, small, "mm")
    return image


def played(trial: Path, seed: int) -> list[Image.Image]:
    """Return the frames of one episode, and say its return."""
    with tempfile.TemporaryDirectory() as folder, bray.load(trial) as agent:
        file = Path(folder) / "episode.gif"
        print(agent.watch(save=file, seed=seed))
        with Image.open(file) as episode:
            return [frame.convert("RGB") for frame in ImageSequence.Iterator(episode)]


def picture(trial: Path, seed: int) -> list[Image.Image]:
    """Return the frames of the picture, in few colours."""
    found = parts(newest_values(tail(trial)), json.loads((trial / "result.json").read_text()))
    frames = played(trial, seed)
    chosen = [*frames[::EVERY], *[frames[-1]] * 8]
    whole = []
    for number, frame in enumerate(chosen):
        image = draw_loop(found, math.modf(number / 16)[0])
        image.paste(frame.resize(GAME[2:], Image.Resampling.BILINEAR), GAME[:2])
        whole.append(image)
    palette = whole[len(whole) // 2].quantize(COLOURS, dither=Image.Dither.NONE)
    return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in whole]


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="of the episode")
    given = parser.parse_args()
    if not (given.trial / CONFIG).is_file():
        parser.error(f"{given.trial}: expected a trial")
    first, *rest = picture(given.trial, given.seed)
    first.save(given.file, save_all=True, append_images=rest, duration=FRAME_MS, loop=0)
    print(f"{given.file}: {len(rest) + 1} frames, {given.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
