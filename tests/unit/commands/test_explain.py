"""``explain``: the table of rules, and the documentation of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.__main__ import main
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    import pytest


def test_every_rule_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    printed = capsys.readouterr().out

    assert [line.split()[0] for line in printed.splitlines() if line.startswith("LD")] == [
        rule.code for rule in ALL_RULES
    ]


def test_a_rule_is_explained_by_its_code_in_either_case_and_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    rule = ALL_RULES[0]
    for code in (rule.code, rule.code.lower()):
        assert main(["explain", code, rule.name]) == 0
        printed = capsys.readouterr().out
        assert printed.count(f"{rule.code} {rule.name}\n=====") == 2
        assert printed.count(rule.documentation.strip()) == 2
