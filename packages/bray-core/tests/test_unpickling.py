"""What came from within the cluster is unpickled by one thread at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading, time
from importlib.machinery import PathFinder, SourceFileLoader
from bray_core.remote.unpickling import unpickled

looked = threading.Event()

class Loader(SourceFileLoader):
    def create_module(self, spec):
        looked.set()
        time.sleep(0.5)

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "game":
            spec = PathFinder.find_spec(name, path)
            spec.loader = Loader(name, spec.origin)
            return spec

sys.meta_path.insert(0, Slow())
names, faults = [], []

def load(module):
    try:
        names.append(unpickled(b"c" + module + b"\\nNAME\\n."))
    except BaseException as error:
        faults.append(repr(error))

package, part = (threading.Thread(target=load, args=(m,)) for m in (b"game", b"game.part"))
package.start()
looked.wait()
part.start()
package.join()
part.join()
print(names, faults)
"""


def test_two_threads_load_a_package_and_a_part_of_it(tmp_path: Path) -> None:
    """While the package is made, the part waits for it; then the package wants the part."""
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "__init__.py").write_text("from game.part import NAME\n")
    (tmp_path / "game" / "part.py").write_text("NAME = 'part'\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "['part', 'part'] []", done.stdout + done.stderr
