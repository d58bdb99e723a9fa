"""``schema``: the JSON Schema of what layoutdoctor saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.commands.output import prepare_outputs, say_what_was_written, write_outputs
from layoutdoctor.commands.streams import print_text
from layoutdoctor.diagnosis.diagnosis import SCHEMA_VERSION, Diagnosis
from layoutdoctor.diagnosis.schema import Schema, schema_of, to_text

if TYPE_CHECKING:
    import argparse

    import msgspec


def schema_of_kind(kind: str) -> Schema:
    """The schema of a saved file."""
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
    return schema_of(records, name=kind, title=title, version=version)


KINDS = ("diagnosis", "comparison", "policy", "accepted")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "The JSON Schema (2020-12) of a file that layoutdoctor saves."
    parser.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        choices=KINDS,
        default="diagnosis",
        help=f"which file: {', '.join(KINDS)} (default: diagnosis)",
    )
    parser.add_argument(
        "--output", metavar="FILE", action="append", default=[], help="write it to a file instead; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(arguments: argparse.Namespace) -> int:
    """Prints the schema, or writes it to files."""
    text = to_text(schema_of_kind(arguments.kind))
    outputs = prepare_outputs(arguments.output, force=arguments.force, further={"": "schema"})  # whatever its suffix
    write_outputs(outputs, lambda output: output.write(text))
    say_what_was_written([output.path for output in outputs])
    if not outputs:
        print_text(text)
    return 0
