"""JSON Schema of configuration dataclasses, for editors that complete and check YAML."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Hashable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union

from bray_core.settings.ranges import declared_bounds
from bray_core.settings.settings_build import LISTS, MAPPINGS, item_types
from bray_core.settings.settings_tree import to_plain, written_name

_PLAIN: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    # YAML 1.1 reads `1e-3` as a string, which the loader takes for a number all the same.
    float: {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[-+0-9.eE]+$"}]},
    str: {"type": "string"},
    Path: {"type": "string"},
}


def json_schema(schema: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of what `load_yaml` takes for a dataclass.

    Types, choices, defaults, bounds; descriptions are the docstrings of class and fields. What
    `__post_init__` checks across fields is not in it. A field's `metadata["bounds"]` wins.
    """
    hints, words = typing.get_type_hints(schema), descriptions(schema)
    properties, required = {}, []
    fields = dataclasses.fields(schema)
    declared = declared_bounds(schema)
    for field in fields:
        made = _of_type(hints[field.name])
        _bound(made, field.metadata.get("bounds") or declared.get(field.name, {}))
        if field.name in words:
            made["description"] = words[field.name]
        default = _default(field)
        if default is dataclasses.MISSING:
            required.append(written_name(field))
        elif "properties" in made:
            made["type"] = ["object", "null"]  # `part:` with nothing below it
        else:
            made["default"] = to_plain(default)
        properties[written_name(field)] = made
    found: dict[str, Any] = {"type": "object"}
    if schema.__doc__:
        found["description"] = inspect.cleandoc(schema.__doc__).split("\n\n")[0]
    found |= {"properties": properties, "additionalProperties": False}
    return found | ({"required": required} if required else {})


def _of_type(hint: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint):
        return json_schema(typing.cast(type[Any], hint))
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": _options(arguments)}
    if origin in LISTS:
        first, *others = item_types(origin, arguments)
        if others == [Ellipsis]:
            return {"type": "array", "items": _of_type(first)}
        items = [_of_type(argument) for argument in arguments]
        number = len(items)
        return {"type": "array", "prefixItems": items, "minItems": number, "maxItems": number}
    if origin in MAPPINGS:
        inner = _of_type(arguments[1]) if arguments else {}
        return {"type": "object", "additionalProperties": inner} if inner else {"type": "object"}
    return copy.deepcopy(_PLAIN.get(hint, {}))


def _options(arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return the schemas of a union's types: a scalar's first, that of null last."""
    kinds = [argument for argument in arguments if argument is not type(None)]
    made = [_of_type(kind) for kind in kinds]
    if len(kinds) > 1:
        made = [inner for one in made for inner in one.get("anyOf", [one])]
    return made + [{"type": "null"}] * (len(kinds) < len(arguments))


def _bound(made: dict[str, Any], limits: Mapping[str, float]) -> None:
    """Put a number's bounds where they belong: to it, to an option of it, to a list's items."""
    if not limits:
        return
    if "anyOf" in made:
        _bound(made["anyOf"][0], limits)
    elif made.get("type") == "array":
        made["minItems"] = 1
        _bound(made["items"], limits)
    else:
        made.update(limits)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def descriptions(schema: type[Any]) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, those of its bases among them.

    They are the strings below the fields; a field's `metadata["description"]` wins.
    """
    found: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _written(typing.cast(Hashable, base))
    for field in dataclasses.fields(schema):
        if "description" in field.metadata:
            found[field.name] = field.metadata["description"]
    return found


@functools.cache
def _written(schema: Hashable) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(typing.cast(type[Any], schema)))).body
    except (OSError, TypeError):  # made at run time
        return {}
    found: dict[str, str] = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = " ".join(text.value.value.split())
    return found
