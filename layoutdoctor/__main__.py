"""
The command line: ``python -m layoutdoctor``, and ``layoutdoctor`` where it is installed.

Faces the user; everything it does is in ``commands``. It starts without torch.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from layoutdoctor._version import __version__
from layoutdoctor.commands import COMMANDS
from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.reports.wording import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEFAULT_COMMAND = "diagnose"


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs one command.

    Args:
        argv: The words after the command's name; those of this process if None.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser, names = build_parser()
    if not words:
        parser.print_help()
        return EXIT_USAGE
    try:
        arguments = parser.parse_args(with_command(words, names))
    except SystemExit as stop:  # argparse has printed the help, the version or what is wrong
        return stop.code if isinstance(stop.code, int) else 0
    arguments.words = words
    try:
        status: int = arguments.run(arguments)
    except LayoutDoctorError as error:
        print(f"layoutdoctor: error: {clean(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("layoutdoctor: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return status


def build_parser() -> tuple[argparse.ArgumentParser, tuple[str, ...]]:
    """The parser of the whole command line, and the names of the subcommands."""
    parser = argparse.ArgumentParser(
        prog="layoutdoctor",
        allow_abbrev=False,
        description="Finds out why a PyTorch model loses time to memory layouts, and what to do about it.",
        epilog="The word 'diagnose' may be left out: layoutdoctor model.py",
    )
    parser.add_argument("--version", action="version", version=f"layoutdoctor {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.prepare_parser(subparsers)
    return parser, tuple(subparsers.choices)


def with_command(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """
    The command line with its subcommand, which may be left out for a diagnosis.

    Args:
        words: What the user typed.
        names: The subcommands.
    """
    if words[0] in (*names, "-h", "--help", "--version"):
        return list(words)
    return [DEFAULT_COMMAND, *words]


if __name__ == "__main__":
    sys.exit(main())
