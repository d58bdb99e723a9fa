"""README and the pages under docs/: every link leads somewhere, and every page is in the index."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES])
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page if not file else page.parent / file
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)

    assert broken == []


def test_the_pictures_show_the_pages_of_today() -> None:
    """If this fails, look at the report and run ``make images``."""
    images = runpy.run_path(str(DOCS.parent / ".ci" / "images.py"))

    assert images["HASHES"].read_text(encoding="utf-8") == images["hashes"]()
    named = (DOCS / "images" / "README.md").read_text(encoding="utf-8")
    assert [name for name in images["PICTURES"] if f"| `{name}` |" not in named] == []


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if page.parent == DOCS or page.name == "README.md"}

    assert {page for page in pages if f"]({page})" not in index} == {"README.md"}
