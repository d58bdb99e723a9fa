"""The texts of many small cases, reviewed in one file: the name of each case, and its text below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.reports.html import CHART_FILES, SCRIPT_FILE, STYLE_FILE, hash_source, read_page_file

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent / "golden" / "cases"


def check(name: str, said: Mapping[str, str], *, update: bool) -> None:
    """Compares each case with the reviewed file; with ``--update-golden`` the file is rewritten."""
    text = "\n".join(f"=== {case}\n{output.rstrip()}\n" for case, output in said.items())
    path = FOLDER / f"{name}.txt"
    if update:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


def without_library(html: str) -> str:
    """A page without the parts that all pages share: library, style sheet, scripts, and the hashes of these."""
    for name in (STYLE_FILE, SCRIPT_FILE, *CHART_FILES):
        text = read_page_file(name)
        html = html.replace(text, f"/* {name} */").replace(hash_source(text), f"'hash of {name}'")
    return html
