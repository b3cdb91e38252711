"""The JSON Schema of templates, made and itself checked once: both take most of a second."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

from bray.templates.json_schemas import json_schema_of_all


@functools.cache
def template_schema() -> dict[str, Any]:
    """Return the schema that `bray config schema` writes, checked to be a JSON Schema."""
    schema = json_schema_of_all()
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def validate(settings: Any) -> None:
    """Raise jsonschema.ValidationError if the schema does not take settings."""
    jsonschema.Draft202012Validator(template_schema()).validate(settings)
