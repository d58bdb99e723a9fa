"""
``schema``: prints the JSON Schema (2020-12) of the files that layoutdoctor saves.

The schema is made from the records: types and bounds from the fields, descriptions from the docstrings.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import msgspec

from layoutdoctor.commands.output import OutputFile, say_what_was_written, writable, write_outputs
from layoutdoctor.commands.streams import print_text
from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.diagnosis.diagnosis import SCHEMA_VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Json = dict[str, "Json"] | list["Json"] | str | float | bool | None
Schema = dict[str, Json]

_FIELD = re.compile(r"^    (\w+): (.*)$")


def schema_of_kind(kind: str) -> Schema:
    """Makes the schema of one kind of saved file."""
    from layoutdoctor.diagnosis import accepted, comparison, policy

    kinds: dict[str, tuple[list[type[msgspec.Struct]], str, int]] = {
        "diagnosis": ([Diagnosis], "layoutdoctor diagnosis", SCHEMA_VERSION),
        "comparison": (
            [comparison.TraceComparison, comparison.ModelComparison],
            "layoutdoctor comparison",
            comparison.COMPARISON_SCHEMA_VERSION,
        ),
        "policy": ([policy.Policy], "layoutdoctor policy", policy.POLICY_SCHEMA_VERSION),
        "accepted": ([accepted.AcceptedFile], "layoutdoctor accepted findings", 1),
    }
    records, title, version = kinds[kind]
    roots, components = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    definitions: Schema = {key: _described(components[key]) for key in sorted(components)}
    for root in records:
        _version_field(definitions[root.__name__], version)
    whole: Schema = dict(roots[0]) if len(roots) == 1 else {"anyOf": [dict(root) for root in roots]}
    return {
        "$schema": DIALECT,
        "$id": f"urn:layoutdoctor:schema:{kind}:{version}",
        "title": title,
        "description": "Fields may be added without a new schema_version; a reader ignores those that it does not "
        "know. Quantities are in SI units, and the name of the field ends in the unit. null means 'not recorded', "
        "unless the field's description says otherwise; it never means zero.",
        **whole,
        "$defs": definitions,
    }


def to_text(schema: Schema) -> str:
    """Formats a schema as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


def _described(component: Json) -> Schema:
    """Adds descriptions to a record's schema from its docstring: the summary, and ``Attributes`` for the fields."""
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
    """Makes the version a required constant, so that a reader refuses files with another version or without one."""
    assert isinstance(definition, dict)
    properties, required = definition["properties"], definition.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    properties["schema_version"] = {"const": version}
    definition["required"] = ["schema_version", *required]


SCHEMA_KINDS = ("diagnosis", "comparison", "policy", "accepted")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "The JSON Schema (2020-12) of a file that layoutdoctor saves."
    parser.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        choices=SCHEMA_KINDS,
        default="diagnosis",
        help=f"which file: {', '.join(SCHEMA_KINDS)} (default: diagnosis)",
    )
    parser.add_argument(
        "--output", metavar="FILE", action="append", default=[], help="write the schema to FILE; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(arguments: argparse.Namespace) -> int:
    """Prints the schema, or writes it to files."""
    text = to_text(schema_of_kind(arguments.kind))
    outputs = [OutputFile(writable(Path(name), (), force=arguments.force), "schema") for name in arguments.output]
    write_outputs(outputs, lambda output: output.write(text))
    say_what_was_written([output.path for output in outputs])
    if not outputs:
        print_text(text)
    return 0
