"""
JSON Schemas (2020-12) of what is saved, made from the records themselves: types and bounds as they are read, titles
and descriptions from the docstrings.
"""

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
# What a field without a word about its unit is counted in, by the end of its name.
_UNITS = (
    ("bytes_per_second", "bytes per second"),
    ("seconds", "seconds"),
    ("seconds_difference", "seconds"),
    ("bytes", "bytes"),
    ("bytes_moved", "bytes"),
    ("share", "a share: 1 is all"),
)


def schema_of(records: Sequence[type[msgspec.Struct]], *, name: str, title: str, version: int) -> Schema:
    """
    The JSON Schema of a saved file.

    Args:
        records: What may stand at its root, each a record with ``schema_version``.
        name: Short name of the kind of file, for the schema's identifier.
        title: What the file is, for people.
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


def _words_of(docstring: str) -> tuple[str, dict[str, str]]:
    """What a record's docstring, without indentation, says: of the whole, and of each field under ``Attributes``."""
    whole, _, attributes = docstring.partition("\nAttributes:\n")
    fields: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in attributes.splitlines():
        found = _FIELD.match(line)
        if found:
            lines = fields.setdefault(found[1], [])
            lines.append(found[2])
        elif line.strip():
            lines.append(line.strip())
    return _on_one_line(whole.splitlines()), {field: _on_one_line(words) for field, words in fields.items()}


def _on_one_line(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split()).replace("``", "`")


def _described(component: Json) -> Schema:
    assert isinstance(component, dict)
    whole, fields = _words_of(str(component.get("description", "")))
    properties = component["properties"]
    assert isinstance(properties, dict)
    described = {
        name: _described_field(name, value, fields.get(name) or fields.get(f"{name}_", ""))
        for name, value in properties.items()
    }
    return {**component, "description": whole, "properties": described}


def _described_field(name: str, value: Json, words: str) -> Json:
    assert isinstance(value, dict)
    unit = next((unit for end, unit in _UNITS if name.endswith(end)), None)
    told = f"{words} ({unit})".strip() if unit is not None and unit.split()[0] not in words.lower() else words
    return {**value, "description": told} if told else value


def _version_field(definition: Json, version: int) -> None:
    """The version is no number to choose: a reader refuses every other one, and a file without it."""
    assert isinstance(definition, dict)
    properties, required = definition["properties"], definition.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    field = properties["schema_version"]
    assert isinstance(field, dict)
    properties["schema_version"] = {"const": version, "description": field.get("description", "")}
    definition["required"] = ["schema_version", *required]
