"""``explain``: prints the table of rules, or their documentation."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layoutdoctor.commands.streams import print_text
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from layoutdoctor.rules import Rule


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "The rules, and what each means."
    parser.add_argument(
        "rules", metavar="CODE", nargs="*", help="a rule's code or name, such as LD101 (default: list all rules)"
    )
    parser.add_argument("--all", action="store_true", help="the documentation of every rule")
    parser.add_argument(
        "--format", choices=("markdown", "text"), default="text", help="format of what is printed (default: text)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table of rules, or the documentation of the requested rules."""
    if arguments.all and arguments.rules:
        raise UsageError("cannot explain single rules and --all of them: leave out one of the two")
    from layoutdoctor.rules import ALL_RULES  # imported late, so that errors of the command line show first

    chosen = ALL_RULES if arguments.all else [_find_rule(name, ALL_RULES) for name in arguments.rules]
    write = _as_markdown if arguments.format == "markdown" else _as_text
    print_text(write(chosen, ALL_RULES))
    return 0


def _find_rule(name: str, rules: Sequence[Rule]) -> Rule:
    for rule in rules:
        if rule.code in (name.upper(), f"LD{name}") or name.lower() == rule.name:
            return rule
    raise UsageError(f"cannot explain rule {name!r}: expected one of {', '.join(sorted(rule.code for rule in rules))}")


def _as_markdown(chosen: Sequence[Rule], rules: Sequence[Rule]) -> str:
    from layoutdoctor.reports.rules_page import rule_page, rules_index

    pages = list(map(rule_page, chosen))
    if len(chosen) in (0, len(rules)):
        pages.insert(0, rules_index(rules, lambda rule: f"#{rule.code.lower()}-{rule.name}"))
    return "\n".join(pages)


def _as_text(chosen: Sequence[Rule], rules: Sequence[Rule]) -> str:
    from layoutdoctor.reports.rules_page import plain, rule_page
    from layoutdoctor.reports.sections.rows import Table, TableRow
    from layoutdoctor.reports.text import plain_table

    if chosen:
        return "\n\n".join(plain(rule_page(rule)) for rule in chosen)
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    rows = tuple(TableRow((rule.code, rule.name, rule.summary)) for rule in rules)
    table = plain_table(Table(("code", "rule", "finds"), rows), width)
    return f"{table}\n\nMore about one: layoutdoctor explain {rules[0].code}\n"
