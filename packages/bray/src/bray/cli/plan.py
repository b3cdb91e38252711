"""`bray plan`: what many machines would do with a template, and which part of them breaks first."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bray_core.cli import Command
from bray_core.errors import ConfigError
from bray_core.files.output_file import check_output

if TYPE_CHECKING:
    from bray.planning.capacity import CapacityPrediction, Machines, Requirements, UnitCosts

_COUNTS = (1, 2, 5)
"""Numbers of machines that growth is shown for: these times the powers of ten."""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "template", nargs="?", help="a template's name (cartpole), a YAML file, or a trial"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, as `bray train` takes them"
    )
    parser.add_argument("--env", help="environment to play instead, as `bray train` takes it")
    parser.add_argument("--machines", type=int, default=1, help="number of machines, all alike")
    parser.add_argument("--cores", type=int, default=1, help="cores of each machine")
    parser.add_argument(
        "--gpus", type=int, default=0, help="GPUs of each machine; ranks train on them"
    )
    parser.add_argument(
        "--network-gbit", type=float, default=10.0, help="Gbit/s of a machine, each direction"
    )
    parser.add_argument(
        "--ranks", type=int, default=1, help="training ranks: num_ranks of appo and impala"
    )
    parser.add_argument(
        "--training-machines",
        type=int,
        default=1,
        help="machines that train; above 1 is beyond what bray places",
    )
    parser.add_argument(
        "--frames-per-s", type=float, help="rate that is wanted: say what must be there for it"
    )
    parser.add_argument(
        "--costs", type=Path, help="unit costs, a file that --save wrote; then nothing is measured"
    )
    parser.add_argument("--save", type=Path, help="file to write the unit costs to, as JSON")
    parser.add_argument(
        "--gpu-training-us", type=float, help="µs of a GPU for each frame; it is not measured"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds to measure for, about")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _plan(options: argparse.Namespace) -> int:
    from bray.planning.capacity import Machines, capacity, growth, needs

    machines = Machines(
        count=options.machines,
        cores=options.cores,
        gpus=options.gpus,
        network_gbit=options.network_gbit,
        ranks=options.ranks,
        training_machines=options.training_machines,
    )
    if options.save:
        check_output("--save", options.save)
    costs, reached = _costs(options)
    found = capacity(costs, machines)
    grown = growth(costs, machines, _counts(machines))
    wanted = None
    if options.frames_per_s is not None:
        wanted = needs(costs, machines, options.frames_per_s)
    if options.save:
        options.save.write_text(json.dumps(asdict(costs), indent=1) + "\n")
    if options.json:
        document = _document(costs, reached, machines, found, grown, wanted)
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        lines = _costs_lines(costs, reached)
        lines += _prediction_lines(machines, found, options.frames_per_s)
        lines += _growth_lines(grown)
        if wanted is not None:
            lines += _needs_lines(wanted, machines, options.frames_per_s)
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _costs(options: argparse.Namespace) -> tuple[UnitCosts, float | None]:
    """Return the costs, and the frames/s of one core that were seen while they were measured."""
    reached = None
    if options.costs:
        if measured_of := options.template or options.env:
            raise ConfigError(
                f"--costs: takes the place of a template, got both {str(options.costs)!r} "
                f"and {measured_of!r}"
            )
        costs = _read(options.costs)
    elif options.template:
        from bray.planning.unit_costs import measure
        from bray.templates.loading import load

        loaded = load(options.template, options.overrides, options.env)
        measured = measure(loaded, options.seconds)
        costs, reached = measured.costs, measured.frames_per_s
    else:
        raise ConfigError("template: expected one to measure, or --costs with a file, got neither")
    if options.gpu_training_us is not None:
        costs = replace(costs, gpu_training_us=options.gpu_training_us)
    return costs, reached


def _read(path: Path) -> UnitCosts:
    """Return the costs of a file.

    Raises:
        ConfigError: there is none, or what it holds is no costs; names the key.
    """
    from bray.planning.capacity import UnitCosts
    from bray_core.config import load_yaml

    return load_yaml(path, UnitCosts)


def _counts(machines: Machines) -> list[int]:
    """Return the numbers of machines that growth is shown for, the given one last."""
    steps = [m * 10**e for e in range(len(str(machines.count))) for m in _COUNTS]
    least = machines.training_machines
    return [*(step for step in steps if least <= step < machines.count), machines.count]


def _document(
    costs: UnitCosts,
    reached: float | None,
    machines: Machines,
    found: CapacityPrediction,
    grown: dict[int, CapacityPrediction],
    wanted: Requirements | None,
) -> dict[str, Any]:
    return {
        "costs": asdict(costs),
        "measured_frames_per_s": reached,
        "machines": asdict(machines),
        "frames_per_s": found.frames_per_s,
        "bottleneck": found.bottleneck,
        "parts": [
            {
                "name": part.name,
                "amount": part.amount,
                "unit": part.unit,
                "load": part.load(found.frames_per_s),
                "is_soft": part.is_soft,
                "limit_frames_per_s": None if math.isinf(part.limit) else part.limit,
            }
            for part in found.parts
        ],
        "growth": [
            {"machines": count, "frames_per_s": p.frames_per_s, "bottleneck": p.bottleneck}
            for count, p in grown.items()
        ],
        "needs": wanted and asdict(wanted),
    }


def _costs_lines(costs: UnitCosts, reached: float | None) -> list[str]:
    rows = [
        ("environment step", f"{costs.environment_us:,.1f} µs a frame"),
        ("policy's forward", f"{costs.inference_us:,.1f} µs a frame"),
        ("drawing, writing, pushing", f"{costs.recording_us:,.1f} µs a frame"),
        ("training", f"{costs.training_us:,.1f} µs a frame, of a rank"),
        ("segments", f"{costs.segment_bytes:,.0f} bytes a frame"),
        ("receiving them", f"{costs.receiving_us:,.2f} µs a frame from another machine"),
        (
            "weights",
            f"{costs.weights_bytes / 1e6:,.3f} MB, {costs.publishes_per_s:g} a s published",
        ),
        ("taking weights over", f"{costs.adopting_us:,.0f} µs of each player"),
        ("optimiser's step", f"once in {costs.frames_per_step:,.1f} frames of a rank"),
        ("averaging gradients *", f"{costs.reducing_us:,.0f} µs a step, two ranks on cores"),
        ("driver *", f"{costs.driver_us:,.0f} µs a s and player"),
    ]
    if costs.gpu_training_us is not None:
        rows.insert(4, ("training on a GPU", f"{costs.gpu_training_us:,.2f} µs a frame"))
        rows.append(("averaging on GPUs *", f"{costs.gpu_reducing_us:,.0f} µs"))
    lines = ["unit costs", *_table(rows)]
    lines.append("  * assumed, like the publishes a second: not measured on this machine")
    if reached is not None:
        both = 1e6 / (costs.playing_us + costs.training_us)
        lines.append(
            f"  one core, in turns: measured {reached:,.0f} frames/s, their sum {both:,.0f}"
        )
    return lines


def _prediction_lines(
    machines: Machines, found: CapacityPrediction, wanted: float | None
) -> list[str]:
    rows: list[tuple[str, ...]] = [("part", "of", "in use", "all at")]
    if wanted is not None:
        rows[0] += (f"at {wanted:,.0f}/s",)
    for part in found.parts:
        limit = "any rate" if math.isinf(part.limit) else f"{part.limit:,.0f}/s"
        load = f"{part.load(found.frames_per_s):.1%}"
        more = () if wanted is None else (f"{part.load(wanted):,.1%}",)
        name = f"{part.name} *" if part.is_soft else part.name
        rows.append((name, _amount(part.amount, part.unit), load, limit, *more))
    kind = f"{machines.count:,} machines of {machines.cores:,} cores"
    return [
        "",
        f"{kind}: {found.frames_per_s:,.0f} frames/s, limited by: {found.bottleneck}",
        *_table(rows),
        "  * where it is used up, playing and training go on; metrics come late, or not",
    ]


def _amount(amount: float, unit: str) -> str:
    if unit == "bytes/s":
        return f"{amount * 8e-9:,.4g} Gbit/s"
    return f"{amount:,.0f} {unit}"


def _growth_lines(grown: dict[int, CapacityPrediction]) -> list[str]:
    rows = [("machines", "frames/s", "limited by")]
    rows += [(f"{n:,}", f"{p.frames_per_s:,.0f}", p.bottleneck) for n, p in grown.items()]
    return ["", "as machines are added", *_table(rows)]


def _needs_lines(needed: Requirements, machines: Machines, wanted: float) -> list[str]:
    device = "GPUs" if machines.gpus else "cores"
    rows = [
        ("players, a core each", f"{needed.players:,}"),
        (f"training ranks, of {device}", f"{needed.ranks:,}"),
        ("machines that train", f"{needed.training_machines:,}"),
        ("machines, with these", f"{needed.machines:,}, for {needed.cores:,} cores"),
        ("buffer workers", f"{needed.buffer_workers:,}"),
        ("experience", f"{needed.experience_gbit:,.4g} Gbit/s into the machines that train"),
        ("weights", f"{needed.weights_gbit:,.3g} Gbit/s out of one machine"),
        ("driver", f"{needed.driver_cores:,.3g} cores, of the one that it has"),
    ]
    broken = "; ".join(needed.broken) or "nothing"
    return [
        "",
        f"what must hold for {wanted:,.0f} frames/s",
        *_table(rows),
        f"too little of it here, what breaks first ahead: {broken}",
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


plan = Command(
    "plan", "predict frames/s of many machines from unit costs measured here", _add_plan, _plan
)
