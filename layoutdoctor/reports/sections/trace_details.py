"""
The long lists behind a report of a recorded trace: conversions, round trips, totals of every kind, environment.

The costliest entries come first, as a trace has thousands of them and lists are cut. Faces the formats that can fold
lists away; imports records, units and the sums only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions, launch_count
from layoutdoctor.reports.sections.details import (
    UNKNOWN,
    Detail,
    environment_detail,
    left_out_of,
    seconds_cell,
    shape_cell,
)
from layoutdoctor.reports.sections.trace_rows import KERNEL_LENGTH, total_cells, total_heads, total_name
from layoutdoctor.reports.sections.trace_wording import CONFIDENCE_WORDS, DIRECTION_WORDS, recorded_trial
from layoutdoctor.reports.sections.wording import clean, clean_name, cut_list, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.records import Conversion, Diagnosis, RedundantPair, Total, TotalKind, Trial

_ALONE = "Costliest first; alone: the part of the time in which nothing else ran on the device."
_KINDS: tuple[TotalKind, ...] = ("operation", "module", "step", "kernel")


def build_trace_details(diagnosis: Diagnosis, most: int) -> tuple[Detail, ...]:
    """
    All long lists of a diagnosis of a recorded trace.

    Args:
        diagnosis: One of a trace.
        most: Entries to keep of each list.
    """
    trial = recorded_trial(diagnosis)
    details = [] if trial is None else [*_conversions(trial, most), *_round_trips(trial, most), *_totals(trial, most)]
    environment = environment_detail(diagnosis, most)
    # What a record calls "created" is when the file was examined; when it was recorded, hardly any says.
    examined = replace(environment, text=(f"Examined at {clean_name(diagnosis.created_at)}.",))
    return (*details, examined)


def _conversions(trial: Trial, most: int) -> Iterator[Detail]:
    in_kernels = trial.kernels.conversions if trial.kernels is not None else ()
    in_graphs = (conversion for graph in trial.graphs for conversion in graph.conversions)
    listed = sorted({c.id: c for c in (*in_kernels, *in_graphs)}.values(), key=lambda c: -(c.seconds or 0.0))
    if listed:
        yield Detail(
            f"Conversions: {len(listed)} listed, {launch_count(counted_conversions(trial))} counted",
            ("id", "owner", "kernel", "tensor", "change", "count", "time", "alone", "rests on", "step", "where"),
            tuple(_conversion_row(conversion) for conversion in listed[:most]),
            left_out_of(listed, most),
            (_ALONE,),
        )


def _conversion_row(conversion: Conversion) -> tuple[str, ...]:
    layout = conversion.source or conversion.target
    is_named = conversion.owner == "library" or conversion.confidence is not None
    return (
        clean_name(conversion.id),
        conversion.owner,
        clean(conversion.kernel, KERNEL_LENGTH) if conversion.kernel else UNKNOWN,
        conversion.tensor + (f" {shape_cell(layout.shape)}" if layout else ""),
        DIRECTION_WORDS[conversion.direction] + (" (fused)" if conversion.fused else ""),
        str(conversion.count),
        seconds_cell(conversion.seconds),
        seconds_cell(conversion.exposed_seconds),
        CONFIDENCE_WORDS[conversion.confidence] if is_named else UNKNOWN,
        clean_name(conversion.step) if conversion.step else UNKNOWN,
        place_of(conversion.location, conversion.module) or clean_name(conversion.op or UNKNOWN),
    )


def _round_trips(trial: Trial, most: int) -> Iterator[Detail]:
    pairs = sorted(trial.redundant_pairs, key=lambda pair: -(pair.seconds or 0.0))
    if pairs:
        yield Detail(
            f"Round trips: {len(pairs)}",
            ("conversions", "tensor", "between", "time", "alone", "rests on", "why it may go", "where"),
            tuple(_pair_row(pair) for pair in pairs[:most]),
            left_out_of(pairs, most),
            (_ALONE,),
        )


def _pair_row(pair: RedundantPair) -> tuple[str, ...]:
    return (
        ", ".join(clean_name(id_) for id_ in (pair.first, *pair.also, pair.second)),
        shape_cell(pair.tensor_shape) if pair.tensor_shape else UNKNOWN,
        cut_list([clean_name(op) for op in pair.between], 6) or "nothing",
        seconds_cell(pair.seconds),
        seconds_cell(pair.exposed_seconds),
        CONFIDENCE_WORDS[pair.confidence] if pair.confidence else UNKNOWN,
        clean(pair.proof, 300) if pair.proof else UNKNOWN,
        place_of(pair.location, pair.module) or UNKNOWN,
    )


def _totals(trial: Trial, most: int) -> Iterator[Detail]:
    for kind in _KINDS:
        totals = [total for total in trial.kernels.totals if total.kind == kind] if trial.kernels is not None else []
        if totals:
            library = ("library",) if kind == "kernel" else ()
            yield Detail(
                f"Totals by {kind}: {len(totals)}",
                (kind, *library, *total_heads(kind)),
                tuple(_total_row(total) for total in totals[:most]),
                left_out_of(totals, most),
            )


def _total_row(total: Total) -> tuple[str, ...]:
    library = (clean_name(total.library) if total.library else UNKNOWN,) if total.kind == "kernel" else ()
    return (total_name(total), *library, *total_cells(total))
