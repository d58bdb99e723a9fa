"""
``explain``: the rules, and what each means. A rule's documentation is its module's docstring.

Faces ``__main__``; needs no torch.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from layoutdoctor.commands.output import print_text
from layoutdoctor.errors import UnknownRuleError
from layoutdoctor.reports.tables import plain_table
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.rules import Rule


def prepare_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """
    Adds the subcommand.

    Args:
        subparsers: The command line's.
    """
    parser = subparsers.add_parser(
        "explain",
        allow_abbrev=False,
        help="the rules, and what each means",
        description="The rules, and what each means.",
    )
    parser.add_argument(
        "rules", metavar="CODE", nargs="*", help="a rule's code or name, such as LD101; all without one"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Prints the table of rules, or the documentation of those asked for.

    Args:
        arguments: The parsed command line.
    """
    if not arguments.rules:
        print_text(_table())
        return 0
    chosen = [_find_rule(name) for name in arguments.rules]
    print_text("\n\n".join(_document(rule) for rule in chosen) + "\n")
    return 0


def _table() -> str:
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    rows = [(rule.code, rule.name, rule.summary) for rule in ALL_RULES]
    table = plain_table(("code", "rule", "finds"), rows, width)
    return f"{table}\n\nMore about one: layoutdoctor explain {ALL_RULES[0].code}\n"


def _find_rule(name: str) -> Rule:
    for rule in ALL_RULES:
        if name.upper() == rule.code or name.lower() == rule.name:
            return rule
    raise UnknownRuleError(name, [rule.code for rule in ALL_RULES])


def _document(rule: Rule) -> str:
    title = f"{rule.code} {rule.name}"
    return f"{title}\n{'=' * len(title)}\n\n{rule.documentation.strip()}"
