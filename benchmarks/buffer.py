"""All that is measured of bray-buffer, part by part; each part is a script with options of its own.

uv run python benchmarks/buffer.py                   # all
uv run python benchmarks/buffer.py --only carriers   # or: benchmarks/buffer_carriers.py --rounds 3
"""

from __future__ import annotations

import parts

if __name__ == "__main__":
    parts.main("buffer", ("carriers", "replay", "remote"), __doc__)
