"""Returns the pages of the rules as plain text or in parts, and their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.rules import Rule

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def plain(page: str) -> str:
    """Removes the addresses of links from Markdown."""
    return _LINK.sub(r"\1", page)


def rule_page(rule: Rule) -> str:
    """Returns the page of one rule in Markdown, with its title."""
    return f"# {rule.code} {rule.name}\n\n{rule.documentation}"


def passages_of(rule: Rule) -> list[tuple[str | None, list[str]]]:
    """Returns the parts of a rule's page without links: each has a heading (None for the summary) and paragraphs."""
    first, *parts = re.split(r"^## ", plain(rule.documentation), flags=re.MULTILINE)
    headed = (part.partition("\n") for part in parts)
    return [(None, _paragraphs(first)), *((heading, _paragraphs(text)) for heading, _, text in headed)]


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]


def rules_index(rules: Sequence[Rule], address: Callable[[Rule], str]) -> str:
    """Returns a table of the rules in Markdown; ``address`` returns the address of a rule's page, for its link."""
    rows = [f"| [{rule.code}]({address(rule)}) | {rule.name} | {rule.summary} |" for rule in rules]
    return "\n".join(("| code | rule | finds |", "| --- | --- | --- |", *rows)) + "\n"
