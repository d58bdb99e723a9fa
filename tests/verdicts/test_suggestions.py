"""What every suggestion of every rule keeps to, on all recordings and all stories of reports."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_ratio
from golden.stories import STORIES
from kept_recordings import diagnosed
from recordings.record import SETS

from layoutdoctor.diagnosis.answer import FASTER
from layoutdoctor.examination.advice.choice import recommend
from layoutdoctor.rules import run_rules
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.evidence import has_backward, is_trace
from layoutdoctor.words import shown

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

ADVISED = re.compile(r"(?:^|; |, |: )(?:use|as) ([^:;]+?)(?=:|;|$|, and |, or | does \()")
CASES = [*SETS, *STORIES]


def diagnosis_of(name: str) -> Diagnosis:
    """A story's diagnosis, or that of a recorded set."""
    return STORIES[name]() if name in STORIES else diagnosed(name)


def with_ratios(diagnosis: Diagnosis, seed: int) -> Diagnosis:
    """The diagnosis as if its configurations had been as fast as chance has it."""
    chance = random.Random(seed)
    if diagnosis.comparison is None:
        return diagnosis
    ratios = tuple(
        a_ratio(one.name, chance.uniform(0.85, 1.4), chance.choice((0.002, 0.02, 0.2)))
        for one in diagnosis.comparison.ratios
    )
    comparison = msgspec.structs.replace(diagnosis.comparison, ratios=ratios)
    advice = recommend(diagnosis.trials, comparison, {})
    return msgspec.structs.replace(diagnosis, comparison=comparison, recommendation=advice)


@pytest.mark.parametrize("name", CASES)
def test_only_what_is_certainly_faster_and_not_beaten_is_advised(name: str) -> None:
    measured = diagnosis_of(name)
    for diagnosis in (measured, *(with_ratios(measured, seed) for seed in range(5))):
        times, names = Times(diagnosis), {shown(trial.name): trial.name for trial in diagnosis.trials}
        for finding in run_rules(diagnosis):
            for words in ADVISED.findall(finding.suggestion or ""):
                advised = names.get(words, "")
                gain = times.over(advised, finding.configuration or "")
                if gain is not None:
                    assert gain.verdict == FASTER, finding
                    assert times.computes_right(advised), finding
                    assert times.better_than(advised) is None, finding


@pytest.mark.parametrize("name", CASES)
def test_frozen_weights_are_not_advised_where_they_were_not_or_cannot_be_tried(name: str) -> None:
    diagnosis = diagnosis_of(name)
    cannot = diagnosis.subject.mode == "training" or diagnosis.subject.target is not None
    for finding in run_rules(diagnosis):
        trial = diagnosis.find_trial(finding.configuration or "")
        of_trace = trial is not None and (is_trace(trial) or has_backward(trial))
        if cannot or of_trace:
            assert not re.search(r"freez|frozen", finding.suggestion or ""), finding
