"""Shows that a refactoring changes no number: tiny runs of every algorithm, their weights digested.

    uv run python scripts/golden.py record /tmp/golden.json    # before
    uv run python scripts/golden.py check /tmp/golden.json     # after: exits with 1 on a difference

Digests hold on one machine only: another kind of CPU rounds otherwise. So none is committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
MAX_FRAMES = 160
VERB = "train"


def trials() -> ModuleType:
    """Return the module that lists the smallest trial of each algorithm."""
    path = ROOT / "tests" / "old_trials" / "make.py"
    spec = importlib.util.spec_from_file_location("old_trials", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digests(folder: Path, name: str, algorithm: str, task: str, settings: str) -> dict[str, str]:
    """Train for a moment; return a digest of each version's weights, by model and version."""
    command = [
        str(Path(sys.executable).with_name("bray")), VERB, algorithm, task, *settings.split(),
        "--goal=1e6", "--evaluate-at=1e6", f"--frames={MAX_FRAMES}", "--episodes=2",
        "--trial", name, "--seed=1",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = {}
    for file in sorted((folder / "trials" / name).glob("models/*/versions/*.safetensors")):
        digest = hashlib.sha256()
        for key, value in sorted(load_file(file).items()):
            digest.update(f"{key} {value.dtype} {value.shape}".encode() + value.tobytes())
        found[f"{file.parts[-3]}/{file.stem}"] = digest.hexdigest()[:16]
    if done.returncode not in (0, 1) or not found:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return found


def main(verb: str, path: Path) -> int:
    """Record the digests, or compare with those recorded."""
    table = trials()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        folder = Path(temporary)
        with contextlib.chdir(folder):
            table.make_demonstrations()
        names = list(table.TRIALS)
        found = dict(
            zip(
                names,
                pool.map(lambda name: digests(folder, name, *table.TRIALS[name]), names),
                strict=True,
            )
        )
    if verb == "record":
        path.write_text(json.dumps(found, indent=1))
        return 0
    wanted = json.loads(path.read_text())
    is_same = True
    for name, versions in found.items():
        if name not in wanted:
            print(f"{name}: not recorded")
            continue
        common = versions.keys() & wanted[name].keys()
        differ = sorted(key for key in common if versions[key] != wanted[name][key])
        print(f"{name}: {len(common)} versions compared, different: {differ or 'none'}")
        is_same &= bool(common) and not differ
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
