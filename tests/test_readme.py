"""README and docs are true: the snippet runs, commands parse, tables list what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from layoutdoctor.__main__ import build_parser, split_words, with_command
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.subjects.cures import ALL_CURES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


PAGES = [README, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))]


def test_a_reader_is_through_soon_and_no_rule_is_forgotten() -> None:
    assert len(README.encode()) <= 7_500
    assert f"{len(ALL_RULES)} of them" in README


def test_every_configuration_and_every_cure_has_its_row() -> None:
    page = (ROOT / "docs" / "configurations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)

    assert rows == [known.name for known in (*BUILTIN_CONFIGURATIONS, *ALL_CURES)]


def test_every_command_is_one_the_parser_takes() -> None:
    lines = re.findall(r"^    python -m layoutdoctor (.+)$", "\n".join(PAGES), re.MULTILINE)

    assert len(lines) >= 5
    for line in lines:
        words, _ = split_words(with_command(shlex.split(line, comments=True)))
        build_parser(words[0]).parse_args(words)


def test_every_make_target_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    for target in re.findall(r"^    make ([a-z-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_no_placeholder_is_left() -> None:
    assert not re.search(r"[A-Z]+_HERE|TODO|FIXME", "\n".join(PAGES))


@pytest.mark.parametrize("saved", sorted((ROOT / "tests" / "golden").glob("*_*.json")))
def test_what_the_skill_for_agents_reads_is_there(saved: Path, tmp_path: Path) -> None:
    guide = (ROOT / "skills" / "layoutdoctor" / "SKILL.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    load(saved).save(tmp_path / "d.json")
    printed: list[object] = []

    exec(snippet.replace('"d.json"', repr(str(tmp_path / "d.json"))), {"print": lambda *words: printed.append(words)})

    assert len(guide.encode()) <= 4_000
    assert printed or load(saved).comparison is None
    for line in re.findall(r"`python -m layoutdoctor ([^`]+)`", guide):
        words = with_command(shlex.split(line))
        build_parser(words[0]).parse_args(words)


@pytest.mark.smoke
@pytest.mark.compile
def test_the_python_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)

    names: dict[str, object] = {}
    snippet = snippet.replace(
        "diagnose(model, images)", "diagnose(model, images, configurations='quick', budget_seconds=0.5)"
    )
    exec(compile(snippet, "README.md", "exec"), names)

    assert (tmp_path / "d.json").exists()
    assert callable(names["fast"])
