"""The records as JSON: the contract holds, what is read is what was written, and what cannot be read is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import a_comparison, a_diagnosis, a_ratio, a_recommendation, a_subject, a_trial
from golden.stories import STORIES

from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("story", STORIES)
def test_a_prompt_shows_one_line(story: str) -> None:
    shown = repr(STORIES[story]())

    assert shown.startswith("<Diagnosis of ")
    assert len(shown) < 400
    assert "\n" not in shown


def test_a_suffix_says_what_is_saved(tmp_path: Path) -> None:
    diagnosis = STORIES["tie"]()
    for name, start in (("d.html", "<!doctype html>"), ("d.md", "#"), ("d.txt", "")):
        diagnosis.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(start)
    with pytest.raises(UsageError, match=r"cannot tell the format of 'd\.data'"):
        diagnosis.save("d.data")


def test_a_trial_that_is_not_there_is_an_error_with_the_names_there_are() -> None:
    diagnosis = a_diagnosis(a_trial("inductor"), a_trial("eager"))

    assert diagnosis.trial("eager") == diagnosis.trials[1]
    with pytest.raises(UsageError, match=r"^cannot find trial 'cuda' in the diagnosis: expected one of ind"):
        diagnosis.trial("cuda")


def test_fields_of_a_later_version_are_ignored() -> None:
    record = json.loads(to_json(a_diagnosis()))
    record["later"] = {"more": 1}
    record["trials"][0]["later"] = 1

    assert from_json(json.dumps(record).encode()) == a_diagnosis()


def test_nothing_in_json_acts_on_a_terminal_or_hides() -> None:
    name = "a\x7f\x85\x9b31m\u200b\u2028\u202e\ufeff\U000e0041é\u4e2d"
    diagnosis = a_diagnosis(subject=a_subject(name=name))
    data = to_json(diagnosis).decode()

    assert json.loads(data)["subject"]["name"] == name
    assert [character for character in data.rstrip("\n") if not character.isprintable()] == []
    assert "é\u4e2d" in data
    assert data.count("\n") == 1


def test_the_fastest_is_the_recommended_one_or_the_first_of_the_comparison() -> None:
    trials = (a_trial("eager"), a_trial("inductor"))
    comparison = a_comparison(a_ratio("eager", 2.0), fastest=("eager", "inductor"))

    assert a_diagnosis(*trials).fastest is None
    assert a_diagnosis(*trials, comparison=comparison).fastest == trials[0]
    recommended = a_diagnosis(*trials, comparison=comparison, recommendation=a_recommendation("inductor"))
    assert recommended.fastest == trials[1]
    assert recommended.baseline == trials[1]
    assert a_diagnosis(*trials).baseline is None

    # Redundant pairs of all trials are together.
    diagnosis = STORIES["gain_with_findings"]()
    assert len(diagnosis.redundant_pairs) == 3


def test_a_trial_that_is_the_same_as_another_is_measured_there() -> None:
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None)
    diagnosis = a_diagnosis(a_trial("inductor"), same)

    assert diagnosis.measured_trial("inductor-layout-opt-on") == diagnosis.trials[0]
    assert diagnosis.measured_trial("inductor") == diagnosis.trials[0]
    assert diagnosis.measured_trial("missing") is None
