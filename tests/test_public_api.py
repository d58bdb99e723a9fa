"""What users may rely on: the names of the package, and that every rule is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import layoutdoctor
from layoutdoctor.rules import ALL_RULES, Rule

ROOT = Path(__file__).parents[1]
HEADINGS = ("What it finds:", "Why it costs:", "Example:", "What to do:", "When it is fine:", "Source:")


def test_public_names_are_few_sorted_and_listed() -> None:
    assert list(layoutdoctor.__all__) == sorted(layoutdoctor.__all__)
    assert len(layoutdoctor.__all__) <= 20
    assert dir(layoutdoctor) == sorted(layoutdoctor.__all__)


@pytest.mark.parametrize("name", layoutdoctor.__all__)
def test_a_public_name_can_be_had(name: str) -> None:
    assert getattr(layoutdoctor, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'layoutdoctor' has no attribute 'diagnoze'"):
        layoutdoctor.diagnoze  # noqa: B018


def test_rules_stand_in_the_order_of_their_codes_and_no_code_is_used_twice() -> None:
    codes = [rule.code for rule in ALL_RULES]

    assert codes == sorted(set(codes))


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
def test_a_rule_has_all_its_parts(rule: Rule) -> None:
    stem = f"{rule.code.lower()}_{rule.name.replace('-', '_')}"

    assert (ROOT / "layoutdoctor" / "rules" / f"{stem}.py").is_file()
    assert (ROOT / "tests" / "unit" / "rules" / f"test_{stem}.py").is_file()
    assert rule.summary
    headings = [line.strip() for line in rule.documentation.splitlines() if line.strip() in HEADINGS]
    assert tuple(headings) == HEADINGS


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
def test_a_rule_has_its_entry_in_the_changelog(rule: Rule) -> None:
    assert rule.code in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
