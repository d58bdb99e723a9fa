"""``schema``: the JSON Schema of what layoutdoctor saves."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.commands.output import prepare_outputs, say_what_was_written, write_outputs
from layoutdoctor.commands.streams import print_text
from layoutdoctor.diagnosis.records import SCHEMA_VERSION, Diagnosis
from layoutdoctor.diagnosis.schema import Schema, schema_of, to_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping


def diagnosis_schema() -> Schema:
    """The schema of a saved diagnosis."""
    return schema_of([Diagnosis], name="diagnosis", title="layoutdoctor diagnosis", version=SCHEMA_VERSION)


def comparison_schema() -> Schema:
    """The schema of what ``compare`` writes: of two recorded traces, or of two diagnoses of models."""
    from layoutdoctor.diagnosis.comparison import COMPARISON_SCHEMA_VERSION, ModelComparison, TraceComparison

    return schema_of(
        [TraceComparison, ModelComparison],
        name="comparison",
        title="layoutdoctor comparison",
        version=COMPARISON_SCHEMA_VERSION,
    )


def accepted_schema() -> Schema:
    """The schema of a file of accepted findings."""
    from layoutdoctor.diagnosis.accepted import AcceptedFile

    return schema_of([AcceptedFile], name="accepted", title="layoutdoctor accepted findings", version=1)


SCHEMAS: Mapping[str, Callable[[], Schema]] = MappingProxyType(
    {"diagnosis": diagnosis_schema, "comparison": comparison_schema, "accepted": accepted_schema}
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "The JSON Schema (2020-12) of a file that layoutdoctor saves."
    parser.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        choices=tuple(SCHEMAS),
        default="diagnosis",
        help=f"which file: {', '.join(SCHEMAS)} (default: diagnosis)",
    )
    parser.add_argument(
        "--output", metavar="FILE", action="append", default=[], help="write it to a file instead; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(arguments: argparse.Namespace) -> int:
    """
    Prints the schema, or writes it to files.

    Raises:
        OutputError: It could not be written after all.
        UsageError: A file exists, or cannot be written.
    """
    text = to_text(SCHEMAS[arguments.kind]())
    outputs = prepare_outputs(arguments.output, force=arguments.force, further={"": "schema"})  # whatever its suffix
    write_outputs(outputs, lambda output: output.write(text))
    say_what_was_written([output.path for output in outputs])
    if not outputs:
        print_text(text)
    return 0
