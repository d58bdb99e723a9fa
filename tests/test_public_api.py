"""What users may rely on: the names of the package, and that every rule is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import layoutdoctor
from layoutdoctor.rules import ALL_RULES, Rule

ROOT = Path(__file__).parents[1]


def test_public_names_are_few_sorted_and_listed() -> None:
    assert list(layoutdoctor.__all__) == sorted(layoutdoctor.__all__)
    assert len(layoutdoctor.__all__) <= 30
    assert dir(layoutdoctor) == sorted(layoutdoctor.__all__)


@pytest.mark.thorough
def test_every_public_name_can_be_had() -> None:
    assert [name for name in layoutdoctor.__all__ if getattr(layoutdoctor, name) is None] == []


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'layoutdoctor' has no attribute 'diagnoze'"):
        layoutdoctor.diagnoze  # noqa: B018


@pytest.mark.parametrize("rule", ALL_RULES)
def test_a_rule_has_its_entry_in_the_changelog(rule: Rule) -> None:
    assert rule.code in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", ["lower_for", "target"])
def test_a_gpu_that_is_not_there_has_two_names(word: str) -> None:
    with pytest.raises(layoutdoctor.UsageError, match="cannot lower for 'cuda:1'"):
        layoutdoctor.diagnose(lambda x: x, 1, **{word: "cuda:1"})
