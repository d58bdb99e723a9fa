"""What every suggestion of every rule keeps to, on all recordings and all stories of reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from golden.stories import STORIES
from kept_recordings import diagnosed
from loops import for_each
from recordings.record import SETS

from layoutdoctor.diagnosis.answer import EQUAL, SLOWER
from layoutdoctor.rules import run_rules
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.evidence import has_backward, is_trace
from layoutdoctor.words import shown

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

ADVISED = re.compile(r"(?:^|; |, |: )(?:use|as) ([^:;]+?)(?=:|;|$|, and |, or | does \()")
DIAGNOSES = [*(diagnosed(name) for name in SETS), *(story() for story in STORIES.values())]


@for_each("diagnosis", DIAGNOSES)
def test_nothing_is_advised_that_was_measured_as_slower(diagnosis: Diagnosis) -> None:
    times, names = Times(diagnosis), {shown(trial.name): trial.name for trial in diagnosis.trials}
    for finding in run_rules(diagnosis):
        for words in ADVISED.findall(finding.suggestion or ""):
            ratio = times.ratio(names[words]) if words in names else None
            if ratio is not None:
                assert ratio.verdict != SLOWER, finding
                assert ratio.median >= 1 or ratio.verdict == EQUAL, finding
                assert times.computes_right(names[words]), finding


@for_each("diagnosis", DIAGNOSES)
def test_frozen_weights_are_not_advised_where_they_were_not_or_cannot_be_tried(diagnosis: Diagnosis) -> None:
    cannot = diagnosis.subject.mode == "training" or diagnosis.subject.target is not None
    for finding in run_rules(diagnosis):
        trial = diagnosis.find_trial(finding.configuration or "")
        of_trace = trial is not None and (is_trace(trial) or has_backward(trial))
        if cannot or of_trace:
            assert not re.search(r"freez|frozen", finding.suggestion or ""), finding
