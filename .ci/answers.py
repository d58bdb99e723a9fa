"""
Runs the commands on the pages of docs/answers and puts what they print into the pages: make answers.

A page has its commands as indented lines, and after them a block between two marks, which holds what the last command
of the group prints; ``<!-- report: 12 lines -->`` keeps the first twelve lines. Names of pages limit it to those.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in (ROOT / "docs" / "answers").glob("*.md") if path.name != "README.md")
GROUP = re.compile(
    r"(?P<commands>(?:^    python -m layoutdoctor [^\n]+\n)+)\n"
    r"(?P<mark><!-- report(?:: (?P<count>\d+) lines)? -->\n)```text\n.*?```\n(?=<!-- end of report -->)",
    re.MULTILINE | re.DOTALL,
)
_SAVED = "d.json"
_SECONDS_TAKEN = re.compile(r"\A(.+) · [\d.]+ (?:s|min)$", re.MULTILINE)


def commands_of(text: str) -> list[list[str]]:
    """The words behind ``python -m layoutdoctor`` of every command on a page."""
    lines = re.findall(r"^    python -m layoutdoctor (.+)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def renewed(text: str) -> str:
    """A page with what its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        return GROUP.sub(lambda group: _renewed_group(group, Path(folder)), text)


def _renewed_group(group: re.Match[str], folder: Path) -> str:
    printed = ""
    for words in commands_of(group["commands"]):
        printed = _printed([str(folder / _SAVED) if word == _SAVED else word for word in words])
    lines = printed.splitlines()
    kept = lines[: int(group["count"] or len(lines))]
    if len(lines) > len(kept):
        kept = [*kept, f"[{len(lines) - len(kept)} more lines]"]
    return group["commands"] + "\n" + group["mark"] + "```text\n" + "\n".join(kept).rstrip() + "\n```\n"


def _printed(words: list[str]) -> str:
    """What a command prints, without the seconds it took; the error, if it ends in one."""
    command = [sys.executable, "-m", "layoutdoctor", *words]
    environment = {**os.environ, "COLUMNS": "100"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 3):
        raise SystemExit(f"error: layoutdoctor {shlex.join(words)} ended with {run.returncode}:\n{run.stderr}")
    return _SECONDS_TAKEN.sub(r"\1", run.stdout or run.stderr.splitlines()[-1])


def main(names: list[str]) -> None:
    """Renews all pages, or those that are named."""
    for page in PAGES:
        if not names or page.stem in names:
            print(f"docs/answers/{page.name}")
            page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
