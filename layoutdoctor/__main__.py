"""
The command line: ``python -m layoutdoctor``, and ``layoutdoctor`` where it is installed.

Faces the user; everything it does is in ``commands``. It starts without torch.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from layoutdoctor._version import __version__
from layoutdoctor.commands import COMMANDS
from layoutdoctor.commands.output import open_standard_streams
from layoutdoctor.commands.streams import lossy_stderr
from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.reports.sections.wording import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEFAULT_COMMAND = "diagnose"


class OneLineParser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, and where the options are listed, instead of listing them."""

    def error(self, message: str) -> NoReturn:
        """
        Ends the process: the command line is wrong.

        Args:
            message: What is wrong.
        """
        self.exit(EXIT_USAGE, f"layoutdoctor: error: {clean(message)}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs one command.

    Args:
        argv: The words after the command's name; those of this process if None.

    Returns:
        The exit status.
    """
    open_standard_streams()
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
    with lossy_stderr():
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
    parser = OneLineParser(
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
