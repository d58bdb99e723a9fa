"""The rules that find problems in a diagnosis. Each rule is a pure function of the diagnosis, in its own file."""

from __future__ import annotations

from collections.abc import Sequence

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.diagnosis.answer import SEVERITIES
from layoutdoctor.errors import first_line
from layoutdoctor.rules.advice import is_of_interest, with_measured_cure
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import main_trial
from layoutdoctor.rules.ld101_round_trip import LD101
from layoutdoctor.rules.ld102_repeated_conversion import LD102
from layoutdoctor.rules.ld103_weight_conversion import LD103
from layoutdoctor.rules.ld104_layout_breaker import LD104
from layoutdoctor.rules.ld105_entry_exit import LD105
from layoutdoctor.rules.ld106_cast_with_conversion import LD106
from layoutdoctor.rules.ld108_strided_copy import LD108
from layoutdoctor.rules.ld110_permuted_copy import LD110
from layoutdoctor.rules.ld111_library_conversion import LD111
from layoutdoctor.rules.ld201_without_effect import LD201
from layoutdoctor.rules.ld202_vetoed import LD202
from layoutdoctor.rules.ld205_input_format import LD205
from layoutdoctor.rules.ld206_forward_backward import LD206
from layoutdoctor.rules.ld207_vetoed_by_one import LD207
from layoutdoctor.rules.ld208_dynamic_shapes import LD208
from layoutdoctor.rules.ld209_output_strides import LD209
from layoutdoctor.rules.ld210_conv1d import LD210
from layoutdoctor.rules.ld211_parameter_strides import LD211
from layoutdoctor.rules.ld212_graph_break import LD212
from layoutdoctor.rules.ld301_known_fault import LD301
from layoutdoctor.rules.ld302_batch_norm_input import LD302
from layoutdoctor.rules.ld303_slower_convolution import LD303
from layoutdoctor.rules.ld305_reference_kernel import LD305
from layoutdoctor.rules.ld306_generated_kernel import LD306
from layoutdoctor.rules.ld307_slower_operation import LD307
from layoutdoctor.rules.ld402_outputs_differ import LD402
from layoutdoctor.rules.ld501_contiguous_call import LD501
from layoutdoctor.rules.ld502_mixed_formats import LD502
from layoutdoctor.rules.ld503_flat_conv3d import LD503
from layoutdoctor.rules.ld504_ambiguous_format import LD504
from layoutdoctor.rules.ld505_as_strided import LD505
from layoutdoctor.rules.ld507_refused_view import LD507
from layoutdoctor.rules.ld508_matrix_product import LD508

__all__ = ["ALL_RULES", "Rule", "run_rules"]

_CONVERSIONS = (LD101, LD102, LD103, LD104, LD105, LD106, LD108, LD110, LD111)
_DECISIONS = (LD201, LD202, LD205, LD206, LD207, LD208, LD209, LD210, LD211, LD212)
_KERNELS = (LD301, LD302, LD303, LD305, LD306, LD307)
_MODELS = (LD501, LD502, LD503, LD504, LD505, LD507, LD508)
ALL_RULES: tuple[Rule, ...] = (*_CONVERSIONS, *_DECISIONS, *_KERNELS, LD402, *_MODELS)


def run_rules(diagnosis: Diagnosis, rules: Sequence[Rule] | None = None) -> tuple[Finding, ...]:
    """
    Runs rules over a diagnosis.

    Args:
        diagnosis: Any diagnosis; findings that it already has are ignored.
        rules: The rules to run; None for all.

    Returns:
        The findings in two groups, first those about the whole diagnosis, the baseline and the recommended
        configuration. Each group is sorted by severity; then LD402 (wrong outputs) comes first, then the highest cost.
        Of a trial with cures, only LD402 is kept, unless the trial is recommended. A rule that raises gives one note.
    """
    trials = (main_trial(diagnosis), diagnosis.measured_trial(diagnosis.recommended_name))
    first = {None, diagnosis.recommended_name, *(trial.name for trial in trials if trial is not None)}
    findings = (finding for rule in (ALL_RULES if rules is None else rules) for finding in _run(rule, diagnosis))
    return tuple(sorted(findings, key=lambda finding: (finding.configuration not in first, *_rank(finding))))


def _run(rule: Rule, diagnosis: Diagnosis) -> list[Finding]:
    try:
        found = [finding for finding in rule.check(diagnosis) if is_of_interest(diagnosis, finding)]
        return [with_measured_cure(diagnosis, finding) for finding in found]
    except Exception as error:  # a mistake in one rule must not cost the hours that went into the diagnosis
        advice = "please report this with the saved diagnosis; the other findings are not affected"
        return [rule.finding(None, f"rule failed: {first_line(error)}", advice)]


def _rank(finding: Finding) -> tuple[int, bool, float, str, str]:
    cost = -(finding.seconds or 0.0)
    is_of_time = finding.code != LD402.code  # wrong outputs are worse than slow ones
    return (SEVERITIES.index(finding.severity), is_of_time, cost, finding.code, finding.configuration or "")
