"""Writes `zoo_defaults.json`: the defaults that the zoo's figures rest on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from bray.training.algorithm import load_algorithm
from bray.zoo.entries import entries

_PARTS = ("model", "agent", "trainer")


def defaults(algorithm: str) -> dict[str, str]:
    """Return the defaults of an algorithm's network, segments and training, by dotted name."""
    loaded = load_algorithm(algorithm)
    made = loaded.of(loaded.example)
    configs = {part: getattr(made.parts, part, None) for part in _PARTS} | {"trainer": made.config}
    return {
        f"{part}.{field.name}": repr(getattr(config, field.name))
        for part, config in configs.items()
        if dataclasses.is_dataclass(config)
        for field in dataclasses.fields(config)
    }


if __name__ == "__main__":
    found = {one.algorithm: defaults(one.algorithm) for one in entries().values() if one.figures}
    file = Path(__file__).with_suffix(".json")
    file.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
