"""All that is measured of bray-model, part by part; each part is a script with options of its own.

uv run python benchmarks/model.py                   # all, about 20 minutes
uv run python benchmarks/model.py --only batching   # or: benchmarks/model_batching.py --rounds 3
"""

from __future__ import annotations

import parts

PARTS = ("batching", "http", "publish", "load", "remote", "clones", "start")

if __name__ == "__main__":
    parts.main("model", PARTS, __doc__)
