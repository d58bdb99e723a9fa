"""
``explain``: the rules, and what each means. A rule's documentation is its module's docstring.

Faces ``__main__``; needs no torch.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from layoutdoctor.commands.output import print_text
from layoutdoctor.errors import UnknownRuleError, UsageError
from layoutdoctor.reports.rules_page import rule_section, rules_index, rules_page
from layoutdoctor.reports.text import plain_table
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

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
        "rules", metavar="CODE", nargs="*", help="a rule's code or name, such as LD101; a table of all without one"
    )
    parser.add_argument("--all", action="store_true", help="the documentation of every rule")
    parser.add_argument(
        "--format", choices=("markdown", "text"), default="text", help="format of what is printed (default: text)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """
    Prints the table of rules, or the documentation of those asked for.

    Args:
        arguments: The parsed command line.

    Raises:
        UsageError: There is no such rule, or rules are named beside ``--all``.
    """
    if arguments.all and arguments.rules:
        raise UsageError("cannot explain single rules and --all of them: leave out one of the two")
    chosen = list(ALL_RULES) if arguments.all else [_find_rule(name) for name in arguments.rules]
    print_text(_as_markdown(chosen) if arguments.format == "markdown" else _as_text(chosen))
    return 0


def _as_markdown(chosen: Sequence[Rule]) -> str:
    if not chosen:
        return rules_index(ALL_RULES)
    if len(chosen) == len(ALL_RULES):
        return rules_page(chosen)
    return "\n".join(rule_section(rule, chosen) for rule in chosen)


def _as_text(chosen: Sequence[Rule]) -> str:
    if not chosen:
        return _table()
    return "\n\n".join(_document(rule) for rule in chosen) + "\n"


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
