"""Reports, documentation and docstrings are in plain English: none of the phrases that a reader has to read twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
UNCLEAR = re.compile(r"\b(?:told|tells|anew|by way of|lays|stands|as lucky|of which none)\b", re.IGNORECASE)
BEGINNING = re.compile(r"(?:Of|That|Those|The same|What|As|Whose|Else|Nor)\b")
FIELD = re.compile(r"^    (?P<name>[\w, *]+): (?:Of|By|As|Those|That|What|In which|Whose|Else)\b", re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```|``.+?``|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def texts() -> Iterator[tuple[str, str]]:
    """The place and the text of every report, page and docstring."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests/golden").rglob("*.txt")]
    for path in pages:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in (ROOT / "layoutdoctor").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
                yield place, ast.get_docstring(node) or ""


def test_no_unclear_phrase_is_left() -> None:
    found = [f"{place}: {match.group()}" for place, text in texts() for match in UNCLEAR.finditer(CODE.sub("", text))]

    assert found == []


def test_a_docstring_and_a_field_begin_with_what_they_are() -> None:
    """A noun or a verb comes first: "Time in which a kernel ran", not "In which a kernel ran"."""
    docstrings = [(place, text) for place, text in texts() if place.startswith("layoutdoctor/")]
    found = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings if BEGINNING.match(text)]
    found += [f"{place}: {match['name']}" for place, text in docstrings for match in FIELD.finditer(text)]

    assert found == []
