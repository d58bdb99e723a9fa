"""
The documentation of the rules in Markdown, made from their docstrings: on one page, or a page each (``docs/rules/``).

The heading of a rule is its code and name, so that its address, ``rules/ld101-round-trip-conversion.md``, stays as long
as the rule.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.rules.base import DOCUMENTATION_HEADINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.rules import Rule

INTRODUCTION = """\
# Rules

What `layoutdoctor` looks for in a diagnosis. `layoutdoctor explain LD101` prints the section of one rule.

- `error`: a measured loss with a verified cure. `warning`: a loss. `note`: worth knowing.
- LD1xx layout conversions, LD2xx what the compiler decided, LD3xx kernels and libraries, LD4xx measurement quality,
  LD5xx how the model is written. A code is never given to another rule.

Made from the rules' docstrings; change these, then run `pytest --update-golden`.
"""
# What Markdown would read as markup; an underscore between letters is none in GitHub's dialect.
_MARKUP = re.compile(r"[\\`*<>\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_CODE = re.compile(r"``(.+?)``")
_RULE_CODE = re.compile(r"\bLD\d{3}\b")
_REPOSITORY_OR_NUMBER = re.compile(r"\b([\w-]+/[\w.-]+) (?:issues?|PR|pull requests?)\b|#(\d+)")


def rules_page(rules: Sequence[Rule]) -> str:
    """The whole page: an introduction, the index, and a section for every rule."""
    sections = [rule_section(rule, rules) for rule in rules]
    return "\n".join((INTRODUCTION, rules_index(rules), *sections))


def _place_of(rule: Rule) -> str:
    return f"#{rule_anchor(rule)}"


def rules_index(rules: Sequence[Rule], address: Callable[[Rule], str] = _place_of) -> str:
    """A table of the rules, each with a link to its section, or to where else it is."""
    rows = [
        f"| [{rule.code}]({address(rule)}) | {_prose(rule.name, {})} | {_prose(rule.summary, {})} |" for rule in rules
    ]
    return "\n".join(("| code | rule | finds |", "| --- | --- | --- |", *rows)) + "\n"


def rule_section(rule: Rule, linked: Sequence[Rule] = (), address: Callable[[Rule], str] = _place_of) -> str:
    """The documentation of one rule as a section; where it names one of ``linked``, the name leads to that."""
    addresses = {other.code: address(other) for other in linked if other is not rule}
    parts = [f"## {rule.code} {rule.name}"]
    for heading, paragraphs in passages_of(rule):
        parts += [f"### {heading}"] if heading is not None else []
        parts += [_prose(text, addresses) for text in paragraphs]
    return "\n\n".join(parts) + "\n"


def passages_of(rule: Rule) -> list[tuple[str | None, list[str]]]:
    """The parts of a rule's documentation: a heading, None for the summary, and its paragraphs."""
    parts: list[tuple[str | None, list[str]]] = [(None, [])]
    for paragraph in re.split(r"\n{2,}", rule.documentation.strip()):
        first, *rest = (line.strip() for line in paragraph.splitlines())
        if first.removesuffix(":") in DOCUMENTATION_HEADINGS:
            parts.append((first.removesuffix(":"), ["\n".join(rest)] if rest else []))
        else:
            parts[-1][1].append("\n".join((first, *rest)))
    return parts


def rule_anchor(rule: Rule) -> str:
    """The anchor that GitHub gives the section of a rule, without ``#``."""
    return f"{rule.code}-{rule.name}".lower()


def _prose(text: str, addresses: dict[str, str]) -> str:
    """Text of a docstring as Markdown: code stays code, all else is shown as it stands, what it names is linked."""
    parts = _CODE.split(text)  # code at the odd places
    prose = _with_links([part if i % 2 else _escaped(part, addresses) for i, part in enumerate(parts)])
    return "".join(f"`{part}`" if i % 2 else part for i, part in enumerate(prose))


def _escaped(text: str, addresses: dict[str, str]) -> str:
    shown = _MARKUP.sub(lambda match: f"\\{match[0]}", text)
    # A line of prose that starts like a heading, a list or a number would become one.
    shown = re.sub(r"(?m)^([#+-]|\d+[.)])(?=\s|$)", lambda match: f"{match[1][:-1]}\\{match[1][-1]}", shown)
    return _RULE_CODE.sub(
        lambda match: f"[{match[0]}]({addresses[match[0]]})" if match[0] in addresses else match[0], shown
    )


def _with_links(parts: Sequence[str]) -> list[str]:
    """Issue numbers as links, in the repository that was named last; ``parts`` has code at the odd places."""
    repository: str | None = None

    def link(match: re.Match[str]) -> str:
        nonlocal repository
        repository = match[1] or repository
        if match[2] is None or repository is None:
            return match[0]
        return f"[#{match[2]}](https://github.com/{repository}/issues/{match[2]})"  # leads to pull requests as well

    return [part if i % 2 else _REPOSITORY_OR_NUMBER.sub(link, part) for i, part in enumerate(parts)]
