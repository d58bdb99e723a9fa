"""The pages of the rules: as plain text, in parts, and their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.rules import Rule

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def plain(page: str) -> str:
    """Markdown without the addresses of its links."""
    return _LINK.sub(r"\1", page)


def rule_page(rule: Rule) -> str:
    """The page of one rule in Markdown, with its title."""
    return f"# {rule.code} {rule.name}\n\n{rule.documentation}"


def passages_of(rule: Rule) -> list[tuple[str | None, list[str]]]:
    """The parts of a rule's page without links: a heading, None for the summary, and its paragraphs."""
    first, *parts = re.split(r"^## ", plain(rule.documentation), flags=re.MULTILINE)
    headed = (part.partition("\n") for part in parts)
    return [(None, _paragraphs(first)), *((heading, _paragraphs(text)) for heading, _, text in headed)]


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]


def rules_index(rules: Sequence[Rule], address: Callable[[Rule], str]) -> str:
    """
    A table of the rules in Markdown, each with a link to its page.

    Args:
        address: Where a rule's page is.
    """
    rows = [f"| [{rule.code}]({address(rule)}) | {rule.name} | {rule.summary} |" for rule in rules]
    return "\n".join(("| code | rule | finds |", "| --- | --- | --- |", *rows)) + "\n"
