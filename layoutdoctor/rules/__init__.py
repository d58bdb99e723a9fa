"""
The rules: what layoutdoctor knows to look for in a diagnosis.

One file per rule, all of them in one tuple. A rule is a pure function of the record. Faces the command line, doctor and
the reports; imports analysis and what is below it, never torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import first_line
from layoutdoctor.records import Finding
from layoutdoctor.rules import (
    ld101_round_trip_conversion,
    ld102_repeated_conversion,
    ld103_weight_converted_every_call,
    ld104_layout_breaker,
    ld105_entry_exit_conversion,
    ld106_cast_with_conversion,
    ld107_channel_padding,
    ld108_strided_copy,
    ld109_generated_copy,
    ld110_permuted_copy,
    ld111_library_conversion,
    ld201_layout_optimization_without_effect,
    ld202_layout_optimization_vetoed,
    ld203_compiled_slower_than_eager,
    ld204_layout_optimization_slower,
    ld205_input_format_mismatch,
    ld206_forward_backward_mismatch,
    ld207_vetoed_by_one_convolution,
    ld208_vetoed_by_dynamic_shapes,
    ld209_output_strides_differ_from_eager,
    ld210_conv1d_cannot,
    ld211_parameter_strides_recompile,
    ld212_graph_break_cuts_region,
    ld301_known_bad_version,
    ld302_strided_batch_norm_input,
    ld303_convolution_slower_in_one_format,
    ld304_strided_reduction,
    ld401_unstable_measurement,
    ld402_outputs_differ,
    ld403_layout_irrelevant,
    ld501_user_contiguous_call,
    ld502_mixed_formats_in_model,
    ld503_flat_conv3d,
    ld504_ambiguous_format,
    ld505_as_strided_on_activation,
)
from layoutdoctor.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import Diagnosis, Severity

__all__ = ["ALL_RULES", "Rule", "run_rules"]

ALL_RULES: tuple[Rule, ...] = (
    ld101_round_trip_conversion.RULE,
    ld102_repeated_conversion.RULE,
    ld103_weight_converted_every_call.RULE,
    ld104_layout_breaker.RULE,
    ld105_entry_exit_conversion.RULE,
    ld106_cast_with_conversion.RULE,
    ld107_channel_padding.RULE,
    ld108_strided_copy.RULE,
    ld109_generated_copy.RULE,
    ld110_permuted_copy.RULE,
    ld111_library_conversion.RULE,
    ld201_layout_optimization_without_effect.RULE,
    ld202_layout_optimization_vetoed.RULE,
    ld203_compiled_slower_than_eager.RULE,
    ld204_layout_optimization_slower.RULE,
    ld205_input_format_mismatch.RULE,
    ld206_forward_backward_mismatch.RULE,
    ld207_vetoed_by_one_convolution.RULE,
    ld208_vetoed_by_dynamic_shapes.RULE,
    ld209_output_strides_differ_from_eager.RULE,
    ld210_conv1d_cannot.RULE,
    ld211_parameter_strides_recompile.RULE,
    ld212_graph_break_cuts_region.RULE,
    ld301_known_bad_version.RULE,
    ld302_strided_batch_norm_input.RULE,
    ld303_convolution_slower_in_one_format.RULE,
    ld304_strided_reduction.RULE,
    ld401_unstable_measurement.RULE,
    ld402_outputs_differ.RULE,
    ld403_layout_irrelevant.RULE,
    ld501_user_contiguous_call.RULE,
    ld502_mixed_formats_in_model.RULE,
    ld503_flat_conv3d.RULE,
    ld504_ambiguous_format.RULE,
    ld505_as_strided_on_activation.RULE,
)

_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


def run_rules(diagnosis: Diagnosis, rules: Sequence[Rule] | None = None) -> tuple[Finding, ...]:
    """
    What the rules find, most severe first, then by cost.

    Args:
        diagnosis: Any diagnosis; its own findings are not looked at.
        rules: Which rules to run; None for all.

    Returns:
        The findings. A rule that raises loses its own findings only: a note with its code says that it failed.
    """
    chosen = ALL_RULES if rules is None else rules
    return tuple(sorted((finding for rule in chosen for finding in _run(rule, diagnosis)), key=_rank))


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


def _rank(finding: Finding) -> tuple[int, float, str, str]:
    return (_SEVERITIES.index(finding.severity), -(finding.seconds or 0.0), finding.code, finding.configuration or "")
