"""The command line: ``python -m layoutdoctor``, or ``layoutdoctor`` if it is installed. Starts without torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from layoutdoctor._version import __version__
from layoutdoctor.commands import COMMAND_ALIASES, COMMANDS
from layoutdoctor.commands.signals import Interrupted, ending_signals
from layoutdoctor.commands.streams import logger, logging_to_stderr, open_standard_streams, say, say_error
from layoutdoctor.errors import LayoutDoctorError

EXIT_USAGE = 2
DEFAULT_COMMAND = "diagnose"
_CHECK = "--check"
"""The option that selects the subcommand ``check``. Only ``_TALK_OPTIONS`` may come before it."""
_TALK_OPTIONS = ("-q", "--quiet", "-v", "--verbose")


_EPILOG = """\
Examples ('diagnose' may be left out):
  layoutdoctor model.py                                       which configuration is fastest, and why
  layoutdoctor model.py --mode training --output report.md    a report for an issue
  layoutdoctor show trace.json.gz                             conversions in a recorded run
  layoutdoctor compare old.json new.json                      what changed between two versions
  layoutdoctor --check                                        what on this machine affects a diagnosis"""


class OneLineParser(argparse.ArgumentParser):
    """
    A parser that reports an error in one line and refers to ``--help``, instead of listing the options.

    Attributes:
        hint: A guess at the user's mistake; the error message ends with this guess. Empty without a guess.
    """

    hint = ""

    def error(self, message: str) -> NoReturn:
        """Reports an error of the command line, and exits with status ``EXIT_USAGE``."""
        say_error(f"{message}{self.hint}; see {self.prog} --help")
        self.exit(EXIT_USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. ``argv``: the words after the program's name; None: sys.argv."""
    open_standard_streams()
    given = list(sys.argv[1:] if argv is None else argv)
    with ending_signals():
        try:
            return _main(given)
        except LayoutDoctorError as error:
            say_error(error)
            return error.exit_status
        except Interrupted as stop:
            say("interrupted")
            return stop.exit_status


def _main(given: Sequence[str]) -> int:
    if not given:
        build_parser().print_help()
        return EXIT_USAGE
    words, words_of_script = split_words(with_command(given))
    parser = build_parser(words[0])
    parser.hint = _hint(words, given)
    try:
        arguments = parser.parse_args(words)
    except SystemExit as stop:  # argparse has printed the help, the version or the error
        return stop.code if isinstance(stop.code, int) else 0
    arguments.words = given
    arguments.words_of_script = words_of_script
    arguments.hint = parser.hint
    with logging_to_stderr(quiet=arguments.quiet, verbose=arguments.verbose):
        logger.debug("version %s, Python %s", __version__, sys.version.split()[0])
        status: int = _module_of(words[0]).run(arguments)
        logger.debug("exit status %d", status)
    return status


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line of ``run`` at ``--``: the words after ``--`` are for the user's script."""
    if words[0] != "run" or "--" not in words:
        return list(words), []
    end = words.index("--")
    return list(words[:end]), list(words[end + 1 :])


def _hint(words: Sequence[str], given: Sequence[str]) -> str:
    """Returns a hint if the target looks like a misspelled subcommand; otherwise an empty text."""
    target = next((word for word in given if not word.startswith("-")), "")
    names = (*COMMANDS, *COMMAND_ALIASES)
    if words[0] != DEFAULT_COMMAND or target in names or "." in target:
        return ""
    import difflib  # imported only for a hint

    close = difflib.get_close_matches(target, names, n=1)
    return f"; did you mean 'layoutdoctor {close[0]}'?" if close else ""


def build_parser(*commands: str) -> OneLineParser:
    """
    Builds the parser of the command line.

    Args:
        commands: Subcommands to import, so that their options are known; the help lists all subcommands.
    """
    parser = OneLineParser(
        prog="layoutdoctor",
        allow_abbrev=False,
        description="Finds out why a PyTorch model loses time to memory layouts, and what to do about it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_talk_options(parser)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        aliases = [alias for alias, meant in COMMAND_ALIASES.items() if meant == name]
        subparser = subparsers.add_parser(name, aliases=aliases, allow_abbrev=False, help=summary)
        if {name, *aliases} & {*commands}:
            _module_of(name).prepare_parser(subparser)
            _add_talk_options(subparser)
    return parser


def _add_talk_options(parser: argparse.ArgumentParser) -> None:
    talk = parser.add_mutually_exclusive_group()
    talk.add_argument("-q", "--quiet", action="store_true", help="no progress and no notes on standard error")
    talk.add_argument("-v", "--verbose", action="store_true", help="more on standard error")
    parser.add_argument("--version", action="version", version=f"layoutdoctor {__version__}")


def _module_of(command: str) -> Any:
    return import_module(f"layoutdoctor.commands.{COMMAND_ALIASES.get(command, command)}")


def with_command(words: Sequence[str]) -> list[str]:
    """Puts the subcommand first, or ``diagnose`` if no subcommand is named. ``--help`` and ``--version`` need none."""
    count = next((number for number, word in enumerate(words) if word not in _TALK_OPTIONS), len(words))
    name, rest = words[count : count + 1], words[count + 1 :]
    if name == [_CHECK]:
        name = [_CHECK.removeprefix("--")]
    if name and (name[0] in COMMANDS or name[0] in COMMAND_ALIASES):
        return [*name, *words[:count], *rest]
    return [*name] if name and name[0] in ("-h", "--help", "--version") else [DEFAULT_COMMAND, *words]


if __name__ == "__main__":
    sys.exit(main())
