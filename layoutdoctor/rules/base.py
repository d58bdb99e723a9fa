"""
What a rule is: a code, a name, a function from a diagnosis to findings, and its module's docstring as documentation.

Faces the rules; imports the records only.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.records import Diagnosis, Finding

DOCUMENTATION_HEADINGS = (
    "What it finds",
    "Why it costs",
    "Example",
    "What to do",
    "When it is fine",
    "Source",
)
"""The headings of every rule's docstring, in this order."""


@dataclass(frozen=True)
class Rule:
    """
    One check.

    Attributes:
        code: ``LD`` and three digits; never given to another rule, also not after this one is gone.
        name: The pattern it finds, in lower case with hyphens; reads well after "allow ...".
        summary: One line.
        check: A pure function of the record: yields findings, prints nothing, reads None as "not recorded".
        documentation: What ``layoutdoctor explain`` shows.
    """

    code: str
    name: str
    summary: str
    check: Callable[[Diagnosis], Iterator[Finding]]
    documentation: str


def document_rule(code: str, name: str, check: Callable[[Diagnosis], Iterator[Finding]], docstring: str | None) -> Rule:
    """
    A rule documented by its module's docstring.

    Args:
        code: The rule's code.
        name: The rule's name.
        check: The rule's function.
        docstring: The module's ``__doc__``; None where Python removed it (``-OO``), then the name stands for it.
    """
    documentation = inspect.cleandoc(docstring or name)
    return Rule(code, name, documentation.splitlines()[0], check, documentation)
