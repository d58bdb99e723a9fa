"""
The subcommands, one file each, in the order of the help; each has ``prepare_parser`` and ``run(arguments)``.

A new subcommand is one file and one line here. Faces ``__main__``.
"""

from __future__ import annotations

from layoutdoctor.commands import compare, diagnose, examine, explain, render, schema, trace

__all__ = ["COMMANDS"]

COMMANDS = (diagnose, trace, examine, render, compare, explain, schema)
