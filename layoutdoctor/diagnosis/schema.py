"""JSON Schemas (2020-12) of saved files, made from the records: types and bounds as read, words from the docstrings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Json = dict[str, "Json"] | list["Json"] | str | float | bool | None
Schema = dict[str, Json]

_FIELD = re.compile(r"^    (\w+): (.*)$")


def schema_of(records: Sequence[type[msgspec.Struct]], *, name: str, title: str, version: int) -> Schema:
    """
    The JSON Schema of a saved file.

    Args:
        records: The records that may be its root, each with ``schema_version``.
        name: Short name of the kind of file, for the schema's identifier.
        title: The words for the file, for people.
        version: Its ``schema_version``.
    """
    roots, components = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    definitions: Schema = {key: _described(components[key]) for key in sorted(components)}
    for root in records:
        _version_field(definitions[root.__name__], version)
    whole: Schema = dict(roots[0]) if len(roots) == 1 else {"anyOf": [dict(root) for root in roots]}
    return {
        "$schema": DIALECT,
        "$id": f"urn:layoutdoctor:schema:{name}:{version}",
        "title": title,
        "description": "Fields may be added without a new schema_version; a reader ignores those that it does not "
        "know. SI units, the unit in the field's name; null is 'not recorded', never zero.",
        **whole,
        "$defs": definitions,
    }


def to_text(schema: Schema) -> str:
    """A schema as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


def _described(component: Json) -> Schema:
    """A record's schema with its docstring: the first part describes the whole, ``Attributes`` the fields."""
    assert isinstance(component, dict)
    whole, _, attributes = str(component.get("description", "")).partition("\nAttributes:\n")
    words: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in attributes.splitlines():
        found = _FIELD.match(line)
        if found:
            lines = words.setdefault(found[1].rstrip("_"), [])
        lines.append(found[2] if found else line)
    properties = component["properties"]
    assert isinstance(properties, dict)
    described: Schema = {}
    for name, value in properties.items():
        assert isinstance(value, dict)
        described[name] = {**value, "description": _on_one_line(*words[name])} if name in words else value
    return {**component, "description": _on_one_line(whole), "properties": described}


def _on_one_line(*lines: str) -> str:
    return " ".join(" ".join(lines).split()).replace("``", "`")


def _version_field(definition: Json, version: int) -> None:
    """The version is no number to choose: a reader refuses every other one, and a file without it."""
    assert isinstance(definition, dict)
    properties, required = definition["properties"], definition.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    properties["schema_version"] = {"const": version}
    definition["required"] = ["schema_version", *required]
