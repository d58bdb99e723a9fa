"""
The subcommands, one file each, in the order of the help; only the requested subcommand is imported.

A new subcommand is a file with ``prepare_parser(parser)`` and ``run(arguments)``, and one line here.
"""

from __future__ import annotations

__all__ = ["COMMANDS", "COMMAND_ALIASES"]

COMMANDS = {
    "diagnose": "diagnose a model (the default: the word may be left out)",
    "run": "diagnose a module of a script, with its inputs when the script runs",
    "show": "traces, tables, logs, recordings or saved diagnoses, whatever each file is, without torch",
    "compare": "what changed between two recorded traces or saved diagnoses",
    "rank": "the convolutions of a saved diagnosis, sorted by the time that each loses between two configurations",
    "policy": "which configuration for which input shapes, from saved diagnoses of one model",
    "scan": "many recorded traces, added up: by rule, kernel, module, rank; here or on a Dask cluster",
    "explain": "the rules, and what each means",
    "schema": "the JSON Schema of a saved diagnosis",
    "check": "what on this machine affects a diagnosis, and what it cannot record (also --check)",
}
"""The line of each subcommand in the help of ``layoutdoctor``."""

COMMAND_ALIASES = {"trace": "show", "examine": "show", "render": "show"}
"""Other names of subcommands, and the subcommand that each name means."""
