"""``explain``: the rules, and what each means. A rule's documentation is its module's docstring."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from layoutdoctor.commands.streams import print_text
from layoutdoctor.errors import UnknownRuleError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.rules import Rule


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = "The rules, and what each means."
    parser.add_argument(
        "rules", metavar="CODE", nargs="*", help="a rule's code or name, such as LD101; a table of all without one"
    )
    parser.add_argument("--all", action="store_true", help="the documentation of every rule")
    parser.add_argument(
        "--format", choices=("markdown", "text"), default="text", help="format of what is printed (default: text)"
    )


def run(arguments: argparse.Namespace) -> int:
    """
    Prints the table of rules, or the documentation of those asked for.

    Raises:
        UsageError: There is no such rule, or rules are named beside ``--all``.
    """
    if arguments.all and arguments.rules:
        raise UsageError("cannot explain single rules and --all of them: leave out one of the two")
    from layoutdoctor.rules import ALL_RULES  # late: what is wrong with the command line is said at once

    chosen = ALL_RULES if arguments.all else [_find_rule(name, ALL_RULES) for name in arguments.rules]
    write = _as_markdown if arguments.format == "markdown" else _as_text
    print_text(write(chosen, ALL_RULES))
    return 0


def _find_rule(name: str, rules: Sequence[Rule]) -> Rule:
    for rule in rules:
        if name.upper() == rule.code or name.lower() == rule.name:
            return rule
    raise UnknownRuleError(name, [rule.code for rule in rules])


def _as_markdown(chosen: Sequence[Rule], rules: Sequence[Rule]) -> str:
    from layoutdoctor.reports.rules_page import rule_section, rules_index, rules_page

    if not chosen:
        return rules_index(rules)
    if len(chosen) == len(rules):
        return rules_page(chosen)
    return "\n".join(rule_section(rule, chosen) for rule in chosen)


def _as_text(chosen: Sequence[Rule], rules: Sequence[Rule]) -> str:
    if not chosen:
        return _table(rules)
    return "\n\n".join(_document(rule) for rule in chosen) + "\n"


def _table(rules: Sequence[Rule]) -> str:
    from layoutdoctor.reports.text import plain_table

    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    rows = [(rule.code, rule.name, rule.summary) for rule in rules]
    table = plain_table(("code", "rule", "finds"), rows, width)
    return f"{table}\n\nMore about one: layoutdoctor explain {rules[0].code}\n"


def _document(rule: Rule) -> str:
    title = f"{rule.code} {rule.name}"
    return f"{title}\n{'=' * len(title)}\n\n{rule.documentation.strip()}"
