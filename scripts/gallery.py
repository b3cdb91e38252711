r"""Draw a picture of the gallery from a trial, and write docs/gallery.md anew.

    OMP_NUM_THREADS=1 uv run bray train --zoo LunarLander-v3 --trial lander
    uv run python scripts/gallery.py trials/lander LunarLander-v3
    uv run python scripts/gallery.py        # only the page

What stands on the page about a picture is docs/gallery/pictures.json: words by hand, all figures
from the trial. The episode is the one of seed 1, whatever its return.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

from bray.training.algorithm import load_algorithm

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "gallery"
RECORDS = FOLDER / "pictures.json"
PAGE = ROOT / "docs" / "gallery.md"
SEED = 1
WIDTH = 320
"""Pixels from the left to the right of a picture; small drawings keep their size."""
FRAME_MS = 80
CPU = "process/cpu_cores{"
MOST_BYTES = 190_000
FORMS = ((WIDTH, 75), (WIDTH, 60), (WIDTH, 45), (240, 45), (240, 30), (200, 20))
"""Widths and qualities that are tried until a picture is small enough."""
MOST_S = 10.0
"""A longer episode is shown so far."""
LAST_MS = 900
"""Time that the last frame stays before the loop begins again."""
PLAYED = re.compile(r"mean returns?:? (?P<returns>.+?)(?: ± \S+)?;? over \d+ \w+")
"""What `bray watch` says of an episode."""
HEAD = """\
# Gallery

Policies at play, each trained by the command below its picture, from nothing, with seed 1 if it
says no other. An episode is the one of seed 1, whatever its return; it runs at the speed of the
environment, 50 steps a second at most, and is cut after ten seconds, or sooner if it is large.
`bray zoo list` tells what other seeds reached; `bray watch TRIAL --save play.webp` makes such a
picture of any trial.

<div class="grid cards" markdown>
"""
FOOT = """
</div>

`scripts/gallery.py` makes pictures and page from trials; all figures are kept in
`docs/gallery/pictures.json`. Time is that of one core at work, on a machine that others used too.
Where a task needs a package beside bray, the command names it.
"""


def page(records: Sequence[dict[str, Any]]) -> str:
    """Return the page as Markdown.

    Args:
        records: the pictures, in their order.
    """
    return HEAD + "".join(card(one) for one in records if "played" in one) + FOOT


def card(record: dict[str, Any]) -> str:
    """Return a picture with what is said of it."""
    algorithm = record["algorithm"]
    title = load_algorithm(algorithm).title
    return f"""
-   ![{record["shows"]}](gallery/{record["name"]}.webp)

    **{record["task"]}**: {record["words"]}
    [{title}](reference/algorithms/{algorithm}.md), {figures(record)}

    `{record["command"]}`
"""


def figures(record: dict[str, Any]) -> str:
    """Return what the run took and reached, in words."""
    took = f"{record['frames']:,} frames in {duration(record['cpu_seconds'])} of a core"
    reached = f"mean return {record['evaluation']:,.4g} over {record['episodes']} episodes"
    return f"{took}: {reached}; this one {record['played']}."


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def watched(trial: Path, kind: str) -> tuple[list[tuple[Image.Image, int]], str]:
    """Return the frames of the episode with their milliseconds, and its return in words.

    Args:
        trial: what plays.
        kind: of the video in between: `gif`, exact where there are few colours, or `webp`.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"episode.{kind}"
        command = [sys.executable, "-m", "bray_core.cli", "watch", str(trial), "--save", str(file)]
        done = subprocess.run(
            [*command, "--seed", str(SEED)], capture_output=True, text=True, check=False
        )
        said = PLAYED.search(done.stdout)
        if done.returncode or said is None:
            raise SystemExit(done.stdout + done.stderr)
        with Image.open(file) as episode:
            frames = [
                (frame.convert("RGB"), int(frame.info.get("duration", FRAME_MS)))
                for frame in ImageSequence.Iterator(episode)
            ]
    return frames, said["returns"]


def chosen(frames: Sequence[tuple[Image.Image, int]]) -> list[tuple[Image.Image, int]]:
    """Return frames at least `FRAME_MS` apart, of the first `MOST_S` seconds."""
    found: list[tuple[Image.Image, int]] = []
    now = due = 0
    for frame, lasts in frames:
        if now >= due or not found:
            found.append((frame, lasts))
            due = now + FRAME_MS
        else:
            found[-1] = (found[-1][0], found[-1][1] + lasts)
        now += lasts
        if now >= 1000 * MOST_S:
            break
    return [*found[:-1], (frames[-1][0] if now < 1000 * MOST_S else found[-1][0], LAST_MS)]


def encoded(frames: Sequence[tuple[Image.Image, int]]) -> bytes:
    """Return the picture, in the first of `FORMS` that `MOST_BYTES` allow, or a part of it."""
    width, height = frames[0][0].size
    times = [lasts for _, lasts in frames]
    for most, quality in FORMS:
        size = (most, round(height * most / width)) if width > most else (width, height)
        images = [frame.resize(size, Image.Resampling.LANCZOS) for frame, _ in frames]
        content = written(images, times, quality)
        if len(content) <= MOST_BYTES:
            return content
    return encoded(frames[: len(frames) * 3 // 4])


def written(images: Sequence[Image.Image], times: list[int], quality: int) -> bytes:
    """Return frames as an animated WebP that begins again."""
    file = io.BytesIO()
    how = {"quality": quality, "method": 4, "minimize_size": True, "kmin": 3, "kmax": 1000}
    images[0].save(
        file, "WEBP", save_all=True, append_images=images[1:], duration=times, loop=0, **how
    )
    return file.getvalue()


def measured(trial: Path) -> dict[str, Any]:
    """Return what a trial says of itself.

    Args:
        trial: a trial that has ended.
    """
    result = json.loads((trial / "result.json").read_text())
    began_s = json.loads(sorted(trial.glob("launches/*/launch.json"))[0].read_text())["began_s"]
    return {
        "frames": result["frames"],
        "cpu_seconds": round(cpu_seconds(trial)),
        "seconds": round(result["seconds"]),
        "evaluation": result["evaluation_return"],
        "episodes": len(result["episode_returns"]),
        "day": date.fromtimestamp(began_s).isoformat(),
    }


def cpu_seconds(trial: Path) -> float:
    """Return the CPU time of all launches: the cores in use, by the time that they were."""
    total = before = 0.0
    for file in sorted(trial.glob("launches/*/metrics.jsonl")):  # seconds go on
        for row in map(json.loads, file.read_text().splitlines()):
            used = [value for name, value in row["values"].items() if name.startswith(CPU)]
            total += max(0.0, row["seconds"] - before) * sum(used)
            before = row["seconds"]
    return total


def add(trial: Path, name: str, kind: str) -> None:
    """Draw a picture, and write what the trial says of it into its record."""
    records = json.loads(RECORDS.read_text())
    record = next(one for one in records if one["name"] == name)
    frames, played = watched(trial, kind)
    content = encoded(chosen(frames))
    (FOLDER / f"{name}.webp").write_bytes(content)
    record |= {**measured(trial), "seed": SEED, "played": played}
    RECORDS.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")
    print(f"{name}: {len(content):,} bytes; {figures(record)}")


def main() -> None:
    """Draw a picture if a trial is named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", type=Path, nargs="?", help="folder of a trial")
    parser.add_argument("name", nargs="?", help="of the picture, in pictures.json")
    parser.add_argument("--kind", default="gif", help="of the video in between: gif or webp")
    given = parser.parse_args()
    if given.trial is not None:
        if given.name is None:
            parser.error("name: expected one that stands in docs/gallery/pictures.json")
        add(given.trial, given.name, given.kind)
    PAGE.write_text(page(json.loads(RECORDS.read_text())))


if __name__ == "__main__":
    main()
