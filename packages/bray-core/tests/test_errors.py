from __future__ import annotations

import inspect
import pickle
import re

import pytest

from bray_core import errors
from bray_core.errors import BrayError, MissingExtraError, PortInUseError, ServiceError

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]


def test_all_are_in_one_tree_that_the_docstring_draws() -> None:
    assert all(issubclass(cls, BrayError) for cls in ALL)
    drawn = re.findall(r"─ (\w+)", errors.__doc__ or "")
    assert sorted(drawn) == sorted(cls.__name__ for cls in ALL if cls is not BrayError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ServiceError("busy", "try later"), "busy: try later"),
        (PortInUseError("127.0.0.1", 80, "choose another"), "port 80 on 127.0.0.1 is already in"),
        (MissingExtraError("the sink", "bray-core", "ray"), r"install bray-core\[ray\]"),
    ],
)
def test_messages(error: BrayError, text: str) -> None:
    assert re.search(text, str(error))


def test_a_service_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ServiceError("busy", "try later")))
    assert (error.code, error.message) == ("busy", "try later")


@pytest.mark.parametrize("cls", [cls for cls in ALL if "__init__" not in vars(cls)])
def test_the_others_survive_it_too(cls: type[BrayError]) -> None:
    error = pickle.loads(pickle.dumps(cls("a word")))
    assert type(error) is cls
    assert str(error) == "a word"


@pytest.mark.parametrize(
    "error", [PortInUseError("::1", 80, "choose another"), MissingExtraError("it", "dist", "extra")]
)
def test_errors_with_fields_of_their_own_survive_it(error: BrayError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_what_is_missing_is_named_as_imports_name_it() -> None:
    try:
        import no_such_module_at_all  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        missing = MissingExtraError("it", "bray-core", "all")
    assert missing.name == "no_such_module_at_all"
    assert MissingExtraError("it", "bray-core", "all").name is None
