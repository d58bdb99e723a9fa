"""The rules' documentation as Markdown: the committed page, its links and anchors, and what a parser makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import cmarkgfm
import html5lib
from cmarkgfm.cmark import Options
from loops import for_each

from layoutdoctor.__main__ import main
from layoutdoctor.reports.rules_page import (
    _MARKUP,
    INTRODUCTION,
    rule_anchor,
    rule_section,
    rules_index,
    rules_page,
)
from layoutdoctor.rules import ALL_RULES, Rule
from layoutdoctor.rules.base import DOCUMENTATION_HEADINGS, document_rule
from layoutdoctor.rules.ld301_known_bad_version import known_faults

if TYPE_CHECKING:
    import pytest

    from layoutdoctor.rules.ld301_known_bad_version import Fault

PAGES = Path(__file__).parents[3] / "docs" / "rules"
FAULTS_PAGE = PAGES.with_name("faults.md")
NAMESPACE = "{http://www.w3.org/1999/xhtml}"


_FAULTS_INTRODUCTION = """\
# Known faults

What `LD301` knows of faults of torch, cuDNN and oneDNN that have to do with layouts and convolutions, and when each
source was read last. `LD301` reports one if versions, device and circumstances all fit.

This page is made from `layoutdoctor/rules/known_faults.json` by `pytest --update-golden`.
"""


def faults_page() -> str:
    """The known faults as one Markdown page, in their order: what ``docs/faults.md`` holds."""
    rows = [
        f"| {' | '.join(map(_cell, (fault.what, _versions(fault), fault.device or 'any', fault.advice)))} | "
        f"{_sources(fault.source)} | {fault.read} |"
        for fault in known_faults()
    ]
    head = "| fault | versions | device | what to do | source | read |"
    return "\n".join((_FAULTS_INTRODUCTION, head, "| --- | --- | --- | --- | --- | --- |", *rows)) + "\n"


def _cell(text: str) -> str:
    return _MARKUP.sub(lambda match: "\\" + match[0], text)


def _versions(fault: Fault) -> str:
    ranges = [("torch", fault.first_torch, fault.before_torch)]
    ranges += [("cuDNN", fault.first_cudnn, fault.before_cudnn)] if fault.is_of_cudnn else []
    words = []
    for name, first, before in ranges:
        bounds = (f"from {first}" if first else "", f"before {before}" if before else "")
        words.append(" ".join((name, *filter(None, bounds))) if any(bounds) else f"any {name}")
    return ", ".join(words)


def _sources(source: str) -> str:
    linked = re.sub(r"#(\d+)", r"[#\1](https://github.com/pytorch/pytorch/issues/\1)", source)
    return linked.removeprefix("pytorch ")


def parsed(markdown: str) -> html5lib.treebuilders.etree.Element:
    return html5lib.parse(cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE))


def text_of(element: object) -> str:
    return " ".join("".join(element.itertext()).split())


def a_rule(documentation: str) -> Rule:
    return document_rule("LD999", "a-rule", lambda diagnosis: iter(()), documentation)


def page_of(rule: Rule) -> str:
    return f"{rule_anchor(rule)}.md"


def test_the_committed_pages_are_up_to_date(update_golden: bool) -> None:
    pages = {page_of(rule): rule_section(rule, ALL_RULES, page_of).replace("\n###", "\n##")[1:] for rule in ALL_RULES}
    pages["README.md"] = f"{INTRODUCTION}\n{rules_index(ALL_RULES, page_of)}"
    if update_golden:
        for name, page in pages.items():
            (PAGES / name).write_text(page, encoding="utf-8")

    assert {path.name: path.read_text(encoding="utf-8") for path in PAGES.iterdir()} == pages
    assert pages["ld101-round-trip-conversion.md"].startswith("# LD101 round-trip-conversion\n")


def test_the_committed_page_of_known_faults_is_up_to_date(update_golden: bool) -> None:
    page = faults_page()
    if update_golden:
        FAULTS_PAGE.write_text(page, encoding="utf-8")

    assert FAULTS_PAGE.read_text(encoding="utf-8") == page
    rows = list(parsed(page).iter(f"{NAMESPACE}tr"))
    assert {len(list(row)) for row in rows} == {6}
    assert all(row.find(f".//{NAMESPACE}a") is not None for row in rows[1:])


def test_every_link_within_the_page_has_its_heading() -> None:
    tree = parsed(rules_page(ALL_RULES))
    # As GitHub makes them: lower case, all but letters, digits, hyphens and spaces left out, spaces as hyphens.
    anchors = {
        re.sub(r"[^\w\- ]", "", text_of(heading).lower()).replace(" ", "-") for heading in tree.iter(f"{NAMESPACE}h2")
    }
    links = [link.get("href") for link in tree.iter(f"{NAMESPACE}a")]
    inner = {link.removeprefix("#") for link in links if link.startswith("#")}

    assert inner == {rule_anchor(rule) for rule in ALL_RULES}
    assert inner <= anchors
    assert [link for link in links if not re.match(r"#|https://github\.com/[\w.-]+/[\w.-]+/issues/\d+$", link)] == []


@for_each("rule", ALL_RULES)
def test_a_reader_of_the_page_sees_the_words_of_the_docstring(rule: Rule) -> None:
    shown = text_of(parsed(rule_section(rule, ALL_RULES)))
    words = " ".join(rule.documentation.replace("``", "").split())
    for heading in DOCUMENTATION_HEADINGS:
        words = words.replace(f" {heading}: ", f" {heading} ")

    assert shown == f"{rule.code} {rule.name} {words}"


def test_what_looks_like_markup_is_shown_as_it_stands() -> None:
    written = "Shows <b>*x*</b> [a](b) __init__, ``<i>|`` as they\n+ are.\n\n1. No list, # no head\n# either.\n\n# Nor."

    shown = parsed(rule_section(a_rule(written)))

    assert text_of(shown) == (
        "LD999 a-rule Shows <b>*x*</b> [a](b) __init__, <i>| as they + are. 1. No list, # no head # either. # Nor."
    )
    assert not [tag for tag in ("b", "em", "strong", "i", "ul", "ol", "h1", "a") if shown.find(f".//{NAMESPACE}{tag}")]


def test_a_number_is_linked_in_the_repository_named_last() -> None:
    section = rule_section(a_rule("See a/b issues #1 and #2; c/d PR #3, ``#4``, LD101."), ALL_RULES)

    assert section.splitlines()[-1] == (
        "See a/b issues [#1](https://github.com/a/b/issues/1) and [#2](https://github.com/a/b/issues/2); "
        "c/d PR [#3](https://github.com/c/d/issues/3), `#4`, [LD101](#ld101-round-trip-conversion)."
    )


def test_the_command_prints_the_page_a_section_or_the_index(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--all", "--format", "markdown"]) == 0
    assert capsys.readouterr().out == rules_page(ALL_RULES)
    assert main(["explain", "ld102", "--format", "markdown"]) == 0
    assert capsys.readouterr().out == rule_section(ALL_RULES[1])
    assert main(["explain", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| code | rule | finds |\n| --- | --- | --- |\n| [LD101](#ld101-")


def test_the_command_prints_all_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--all"]) == 0
    printed = capsys.readouterr().out

    assert [line for line in printed.splitlines() if re.fullmatch(r"LD\d{3} [a-z0-9-]+", line)] == [
        f"{rule.code} {rule.name}" for rule in ALL_RULES
    ]


def test_single_rules_and_all_of_them_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "LD101", "--all"]) == 2
    assert capsys.readouterr().err == (
        "layoutdoctor: error: cannot explain single rules and --all of them: leave out one of the two\n"
    )
