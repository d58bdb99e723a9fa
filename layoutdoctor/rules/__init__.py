"""
The rules: what layoutdoctor knows to look for in a diagnosis.

One file per rule, all of them in one tuple. A rule is a pure function of the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.errors import first_line
from layoutdoctor.rules.advice import is_of_interest, with_measured_cure
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import main_trial
from layoutdoctor.rules.ld101_round_trip_conversion import RULE as LD101
from layoutdoctor.rules.ld102_repeated_conversion import RULE as LD102
from layoutdoctor.rules.ld103_weight_converted_every_call import RULE as LD103
from layoutdoctor.rules.ld104_layout_breaker import RULE as LD104
from layoutdoctor.rules.ld105_entry_exit_conversion import RULE as LD105
from layoutdoctor.rules.ld106_cast_with_conversion import RULE as LD106
from layoutdoctor.rules.ld108_strided_copy import RULE as LD108
from layoutdoctor.rules.ld110_permuted_copy import RULE as LD110
from layoutdoctor.rules.ld111_library_conversion import RULE as LD111
from layoutdoctor.rules.ld201_layout_optimization_without_effect import RULE as LD201
from layoutdoctor.rules.ld202_layout_optimization_vetoed import RULE as LD202
from layoutdoctor.rules.ld205_input_format_mismatch import RULE as LD205
from layoutdoctor.rules.ld206_forward_backward_mismatch import RULE as LD206
from layoutdoctor.rules.ld207_vetoed_by_one_convolution import RULE as LD207
from layoutdoctor.rules.ld208_vetoed_by_dynamic_shapes import RULE as LD208
from layoutdoctor.rules.ld209_output_strides_differ_from_eager import RULE as LD209
from layoutdoctor.rules.ld210_conv1d_cannot import RULE as LD210
from layoutdoctor.rules.ld211_parameter_strides_recompile import RULE as LD211
from layoutdoctor.rules.ld212_graph_break_cuts_region import RULE as LD212
from layoutdoctor.rules.ld301_known_bad_version import RULE as LD301
from layoutdoctor.rules.ld302_strided_batch_norm_input import RULE as LD302
from layoutdoctor.rules.ld303_convolution_slower_in_one_format import RULE as LD303
from layoutdoctor.rules.ld304_strided_reduction import RULE as LD304
from layoutdoctor.rules.ld305_reference_kernel import RULE as LD305
from layoutdoctor.rules.ld306_slower_generated_kernel import RULE as LD306
from layoutdoctor.rules.ld307_operation_slower_in_format import RULE as LD307
from layoutdoctor.rules.ld308_memory_given_back import RULE as LD308
from layoutdoctor.rules.ld402_outputs_differ import RULE as LD402
from layoutdoctor.rules.ld501_user_contiguous_call import RULE as LD501
from layoutdoctor.rules.ld502_mixed_formats_in_model import RULE as LD502
from layoutdoctor.rules.ld503_flat_conv3d import RULE as LD503
from layoutdoctor.rules.ld504_ambiguous_format import RULE as LD504
from layoutdoctor.rules.ld505_as_strided_on_activation import RULE as LD505
from layoutdoctor.rules.ld507_view_refuses_format import RULE as LD507

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Severity

__all__ = ["ALL_RULES", "Rule", "run_rules"]

_CONVERSIONS = (LD101, LD102, LD103, LD104, LD105, LD106, LD108, LD110, LD111)
_DECISIONS = (LD201, LD202, LD205, LD206, LD207, LD208, LD209, LD210, LD211, LD212)
_KERNELS = (LD301, LD302, LD303, LD304, LD305, LD306, LD307, LD308)
_MEASURING = (LD402,)
_MODELS = (LD501, LD502, LD503, LD504, LD505, LD507)
ALL_RULES: tuple[Rule, ...] = (*_CONVERSIONS, *_DECISIONS, *_KERNELS, *_MEASURING, *_MODELS)

_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


def run_rules(diagnosis: Diagnosis, rules: Sequence[Rule] | None = None) -> tuple[Finding, ...]:
    """
    What the rules find: of the default and the recommended configuration first; most severe first, then by cost.

    Args:
        diagnosis: Any diagnosis; its own findings are not looked at.
        rules: Which rules to run; None for all.

    Returns:
        The findings. A rule that raises loses its own findings only: a note with its code says that it failed.
    """
    chosen = ALL_RULES if rules is None else rules
    first = {None, *_first_names(diagnosis)}
    findings = (finding for rule in chosen for finding in _run(rule, diagnosis))
    told = (with_measured_cure(diagnosis, finding) for finding in findings if is_of_interest(diagnosis, finding))
    return tuple(sorted(told, key=lambda finding: (finding.configuration not in first, *_rank(finding))))


def _first_names(diagnosis: Diagnosis) -> Iterator[str]:
    """The default and the recommended configuration, also where another trial stands for one of them."""
    main, advice = main_trial(diagnosis), diagnosis.recommendation
    names = (main.name if main is not None else None, advice.configuration if advice is not None else None)
    for name in names:
        trial = diagnosis.measured_trial(name) if name is not None else None
        yield from (name for name in (name, trial.name if trial is not None else None) if name is not None)


def _run(rule: Rule, diagnosis: Diagnosis) -> list[Finding]:
    try:
        return list(rule.check(diagnosis))
    except Exception as error:  # a mistake in one rule must not cost the hours that went into the diagnosis
        return [
            Finding(
                code=rule.code,
                rule=rule.name,
                severity="note",
                configuration=None,
                message=f"rule failed: {first_line(error)}",
                suggestion="please report this with the saved diagnosis; the other findings are not affected",
            )
        ]


def _rank(finding: Finding) -> tuple[int, bool, float, str, str]:
    cost = -(finding.seconds or 0.0)
    is_of_time = finding.code != LD402.code  # wrong outputs are worse than slow ones
    return (_SEVERITIES.index(finding.severity), is_of_time, cost, finding.code, finding.configuration or "")
