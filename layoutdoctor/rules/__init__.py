"""The rules: what layoutdoctor looks for in a diagnosis. Each is a pure function of the record; a file has a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.answer import SEVERITIES
from layoutdoctor.errors import first_line
from layoutdoctor.rules.advice import is_of_interest, with_measured_cure
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import LD201, LD202, LD206, LD207, LD208, LD210
from layoutdoctor.rules.differences import LD306, LD307
from layoutdoctor.rules.evidence import main_trial
from layoutdoctor.rules.formats import LD205, LD502
from layoutdoctor.rules.library import LD108, LD110, LD111
from layoutdoctor.rules.outputs import LD209, LD402, LD505
from layoutdoctor.rules.regions import LD104, LD105, LD212
from layoutdoctor.rules.round_trips import LD101, LD102
from layoutdoctor.rules.slower import LD302, LD303, LD305
from layoutdoctor.rules.source import LD211, LD501, LD503, LD504, LD507, LD508
from layoutdoctor.rules.versions import LD301
from layoutdoctor.rules.weights import LD103, LD106

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

__all__ = ["ALL_RULES", "Rule", "run_rules"]

_CONVERSIONS = (LD101, LD102, LD103, LD104, LD105, LD106, LD108, LD110, LD111)
_DECISIONS = (LD201, LD202, LD205, LD206, LD207, LD208, LD209, LD210, LD211, LD212)
_KERNELS = (LD301, LD302, LD303, LD305, LD306, LD307)
_MODELS = (LD501, LD502, LD503, LD504, LD505, LD507, LD508)
ALL_RULES: tuple[Rule, ...] = (*_CONVERSIONS, *_DECISIONS, *_KERNELS, LD402, *_MODELS)


def run_rules(diagnosis: Diagnosis, rules: Sequence[Rule] | None = None) -> tuple[Finding, ...]:
    """
    The findings of the default and the recommended configuration first; most severe first, then by cost.

    Args:
        diagnosis: Any diagnosis; its own findings are not looked at.
        rules: Which rules to run; None for all.

    Returns:
        The findings. A rule that raises loses its own findings only: a note with its code says that it failed.
    """
    trials = (main_trial(diagnosis), diagnosis.measured_trial(diagnosis.recommended_name))
    first = {None, diagnosis.recommended_name, *(trial.name for trial in trials if trial is not None)}
    findings = (finding for rule in (ALL_RULES if rules is None else rules) for finding in _run(rule, diagnosis))
    kept = (with_measured_cure(diagnosis, finding) for finding in findings if is_of_interest(diagnosis, finding))
    return tuple(sorted(kept, key=lambda finding: (finding.configuration not in first, *_rank(finding))))


def _run(rule: Rule, diagnosis: Diagnosis) -> list[Finding]:
    try:
        return list(rule.check(diagnosis))
    except Exception as error:  # a mistake in one rule must not cost the hours that went into the diagnosis
        advice = "please report this with the saved diagnosis; the other findings are not affected"
        return [rule.finding(None, f"rule failed: {first_line(error)}", advice)]


def _rank(finding: Finding) -> tuple[int, bool, float, str, str]:
    cost = -(finding.seconds or 0.0)
    is_of_time = finding.code != LD402.code  # wrong outputs are worse than slow ones
    return (SEVERITIES.index(finding.severity), is_of_time, cost, finding.code, finding.configuration or "")
