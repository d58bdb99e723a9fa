"""The pages of the rules, their index, the page of known faults, and ``explain``, which prints them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.reports.rules_page import passages_of, plain, rule_page, rules_index
from layoutdoctor.rules import ALL_RULES, Rule
from layoutdoctor.rules.known_faults import KNOWN_FAULTS

if TYPE_CHECKING:
    from layoutdoctor.rules.known_faults import Fault

DOCS = Path(__file__).parents[3] / "docs"
HEADINGS = ("What it finds", "Why it costs", "Example", "What to do", "When it is fine", "Source")
_FAULTS_INTRODUCTION = """\
# Known faults

What `LD301` knows of faults of torch, cuDNN and oneDNN that have to do with layouts and convolutions, from issues and
pull requests of [PyTorch](https://github.com/pytorch/pytorch/issues). `LD301` reports one if versions, device and
circumstances all fit.

This page is made from `layoutdoctor/rules/known_faults.py` by `pytest --update-golden`.
"""


def faults_page() -> str:
    """The known faults as one Markdown page, in their order: what ``docs/faults.md`` holds."""
    rows = [
        f"| {' | '.join(map(_cell, (fault.what, _versions(fault), fault.device or 'any', fault.advice)))} | "
        f"{fault.source.removeprefix('pytorch ')} |"
        for fault in KNOWN_FAULTS
    ]
    head = "| fault | versions | device | what to do | source |"
    return "\n".join((_FAULTS_INTRODUCTION, head, "| --- | --- | --- | --- | --- |", *rows)) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"[*<>|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", lambda match: f"\\{match[0]}", text)


def _versions(fault: Fault) -> str:
    ranges = [("torch", fault.first_torch, fault.before_torch)]
    ranges += [("cuDNN", fault.first_cudnn, fault.before_cudnn)] if fault.first_cudnn else []
    words = []
    for name, first, before in ranges:
        bounds = (f"from {first}" if first else "", f"before {before}" if before else "")
        words.append(" ".join((name, *filter(None, bounds))) if any(bounds) else f"any {name}")
    return ", ".join(words)


def test_the_committed_index_and_the_page_of_known_faults_are_up_to_date(update_golden: bool) -> None:
    index, faults = DOCS / "rules" / "README.md", DOCS / "faults.md"
    rows = rules_index(ALL_RULES, lambda rule: f"../../layoutdoctor/rules/{rule.page.name}")
    head = index.read_text(encoding="utf-8").partition("| code |")[0]
    if update_golden:
        index.write_text(head + rows, encoding="utf-8")
        faults.write_text(faults_page(), encoding="utf-8")

    assert index.read_text(encoding="utf-8") == head + rows
    assert faults.read_text(encoding="utf-8") == faults_page()


def test_a_rule_has_a_module_and_a_page_of_its_own_with_its_code_in_the_name() -> None:
    rules = DOCS.parent / "layoutdoctor" / "rules"
    modules = {rule.code: rule.check.__module__.rpartition(".")[2] for rule in ALL_RULES}

    assert [module for code, module in modules.items() if not module.startswith(f"{code.lower()}_")] == []
    assert {path.stem for path in rules.glob("ld*.py")} == set(modules.values())
    assert {path.stem for path in rules.glob("*.md")} == set(modules.values())


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
def test_a_page_has_a_title_a_summary_and_six_parts_and_links_to_issues_only(rule: Rule) -> None:
    page = rule_page(rule)
    (_, summary), *parts = passages_of(rule)
    links = re.findall(r"\]\(([^)]+)\)", page)

    assert re.fullmatch(r"LD[1-5]\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.page.read_text(encoding="utf-8") == page
    assert summary == [rule.summary]
    assert summary[0].endswith(".")
    assert tuple(heading for heading, _ in parts) == HEADINGS
    assert all(paragraphs for _, paragraphs in parts)
    assert [link for link in links if not re.match(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+$", link)] == []


def test_explain_prints_pages_by_code_and_name_and_the_table_in_text_and_markdown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printed(*words: str) -> str:
        assert main(["explain", *words]) == 0
        return capsys.readouterr().out

    rule = ALL_RULES[1]
    assert printed("102") == printed("ld102") == printed("LD102") == printed(rule.name) == plain(rule_page(rule))
    assert "](" not in printed("--all")
    assert re.findall(r"^# (LD\d+) ", printed("--all"), re.MULTILINE) == [rule.code for rule in ALL_RULES]
    assert re.findall(r"^(LD\d+) ", printed(), re.MULTILINE) == [rule.code for rule in ALL_RULES]
    assert printed("ld102", "--format", "markdown") == rule_page(rule)
    index = printed("--format", "markdown")
    assert index.startswith("| code | rule | finds |\n| --- | --- | --- |\n| [LD101](#ld101-round-trip-conversion) |")
    pages = "\n".join(map(rule_page, ALL_RULES))
    assert printed("--all", "--format", "markdown") == f"{index}\n{pages}"
