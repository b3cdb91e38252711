"""Importing a user's modules and files, which a command line or a template names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bray_core.errors import ConfigError

CLASS_FORMS = "module:Class or file.py:Class"
"""How a setting names a class."""
NOT_FOUND = (ImportError, AttributeError, OSError, ValueError, SyntaxError)
"""What goes wrong where code is named that is not there."""


def import_user_module(name: str) -> ModuleType:
    """Import a module, also one in the working directory, as `python -m` does.

    The working directory comes last: no file there takes the place of an installed module. The
    module that runs as `python -m package.module` is not run again: it is `__main__`.

    Raises:
        ImportError: There is no such module, or its own imports fail.
        ValueError: The name is empty.
    """
    if name == _program_module():
        return sys.modules["__main__"]
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # it may be younger than this process
    return importlib.import_module(name)


def import_user_file(path: Path) -> ModuleType:
    """Import a file under its own name, as `python -m` beside it would; once.

    The file of the running program is not run again: it is the module `__main__`.

    Raises:
        ImportError: There is no such file, a module of its name is loaded already, or its own
            imports fail.
    """
    path = path.resolve()
    if path == _program_file():
        return sys.modules["__main__"]
    known = sys.modules.get(path.stem)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == path:
            return known
        raise ImportError(f"a module named {path.stem} is loaded already: rename the file")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # also where it is unpickled, in a worker of this machine
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def module_command(module: str) -> list[str]:
    """Return the words that run a module as `python -m` does, with the folders of this `sys.path`.

    The process finds the code that this one finds: beside the program's file, where `python -m`
    does not look, and where a notebook or a test has added a folder.
    """
    folders = [folder for folder in sys.path if isinstance(folder, str)]  # others are not looked at
    lines = f"import runpy, sys; sys.path[:] = {folders}; "
    return [sys.executable, "-c", f"{lines}runpy.run_module({module!r}, None, '__main__', True)"]


def import_user_code(where: str) -> ModuleType:
    """Import what stands before the colon of `module:name` or `file.py:name`.

    Raises:
        ImportError: There is no such module or file, its own imports fail, or its code raises.
        ValueError: The name is empty.
    """
    try:
        return import_user_file(Path(where)) if where.endswith(".py") else import_user_module(where)
    except (ImportError, OSError, SyntaxError, ValueError):
        raise
    except (Exception, SystemExit) as error:
        from bray_core.process.raised_words import raised_words
        from bray_core.process.signal_errors import raise_if_of_signal

        raise_if_of_signal(error)
        raise ImportError(f"it raised {raised_words(error)}") from error


def find_user_code(name: str) -> Any:
    """Return what `module:name` or `file.py:name` names; imports it.

    Raises:
        ImportError: There is no such module or file, or its own imports fail.
        AttributeError: The module has no such name.
        ValueError: There is no module before the colon.
    """
    where, _, attribute = name.rpartition(":")
    return getattr(import_user_code(where), attribute)


def is_of_program(name: str) -> bool:
    """Return whether `module:name` or `file.py:name` lies in the running program itself."""
    where = name.rpartition(":")[0]
    return where in ("__main__", _program_module()) or (
        where.endswith(".py") and Path(where).resolve() == _program_file()
    )


def code_name(value: object) -> str | None:
    """Return the name by which `find_user_code` gives this very object; None where there is none.

    What lies at the top of a module is `module:name`. In the file of the running program, and of a
    module beside it that is not in the working directory, it is `file.py:name`, so that other
    programs find it; in a notebook `__main__:name`. Lambdas and what a function has made have no
    such name.
    """
    where, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if where == "__main__":
        where = _program_module() or str(_program_file() or where)
    elif isinstance(where, str):
        where = str(_file_beside_program(where) or where)
    if not isinstance(where, str) or not attribute.isidentifier():
        return None
    try:
        found = find_user_code(f"{where}:{attribute}")
    except NOT_FOUND:
        return None
    return f"{where}:{attribute}" if found is value else None


def _program_file() -> Path | None:
    """Return the file of the running program; None of a notebook or an interpreter."""
    where = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(where, str) or not where.endswith(".py"):
        return None
    return Path(where).resolve()


def _program_module() -> str | None:
    """Return the name of the program's module in its package, where `python -m` runs one."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    return name if "." in name else None


def _file_beside_program(name: str) -> Path | None:
    """Return the file of a module beside the program's, which other programs would not find."""
    program, file = _program_file(), getattr(sys.modules.get(name), "__file__", None)
    if program is None or file is None or "." in name or program.parent == Path.cwd():
        return None
    path = Path(file).resolve()
    return path if path.parent == program.parent and path.suffix == ".py" else None


def check_code_name(where: str, name: object, expected: str = CLASS_FORMS) -> str:
    """Return a setting's name of the form `module:name` or `file.py:name`; imports nothing.

    Raises:
        ConfigError: it has another form; says `where` that is set, and what is `expected`.
    """
    module, _, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not isinstance(name, str) or not module or not attribute.isidentifier():
        raise ConfigError(f"{where}: expected {expected}, got {name!r}")
    return name


def find_named_code(where: str, name: str, expected: str = CLASS_FORMS) -> Any:
    """Return what a setting names as `module:name` or `file.py:name`; imports it.

    Raises:
        ConfigError: it cannot be; says `where` that is set, and what is `expected`.
    """
    try:
        return find_user_code(name)
    except NOT_FOUND as error:
        raise ConfigError(f"{where}: expected {expected}, got {name!r}: {error}") from error
