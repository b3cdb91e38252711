"""`bray pack`: a trained agent as one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bray_core.command import Command


def _add_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trial", type=Path, help="folder of a trial or an export")
    parser.add_argument("file", type=Path, help="the file to write, such as agent.bray")
    parser.add_argument("--policy", help="name of the only policy to pack; by default all of them")


def _pack(options: argparse.Namespace) -> int:
    from bray.trained.packing import pack_trial
    from bray_model.export_files.manifest import file_sha256

    names = pack_trial(options.trial, options.file, options.policy)
    size = options.file.stat().st_size
    sys.stdout.write(
        f"wrote {options.file}: {', '.join(names)}, {size:,} bytes\n"
        f"sha256 {file_sha256(options.file)}\n"
        f"try: bray serve {options.file}\n"
    )
    return 0


pack = Command("pack", "write a trained agent into one file", _add_pack, _pack)
