"""What the site has beside docs/: a page for each rule, README as the first page, and links that lead to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RULES = "layoutdoctor/rules/"
ELSEWHERE = {"README.md": "start.md", "CHANGELOG.md": "changelog.md", "skills/layoutdoctor/SKILL.md": "skill.md"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are kept elsewhere."""
    for path in sorted((ROOT / RULES).glob("ld*.md")):
        files.append(File.generated(config, f"rules/{path.name}", abs_src_path=str(path)))
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository become links to their pages."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri in ELSEWHERE.values():
        markdown = markdown.replace("](docs/", "](")
    for source, target in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{up}{source}", f"]({up}{target}")
    return re.sub(rf"\]\((?:\.\./)*{RULES}(?=ld)", f"]({up}rules/", markdown)
