"""
Recorded conversion kernels of convolutions whose tensors are known, held against the launch-grid rule and ``trace``.

Pure functions of a recorded trace; needs no torch and no device. ``launch_grid`` runs the convolutions and says what
the counts mean.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layoutdoctor.analysis.convolution_shapes import cudnn_grid
from layoutdoctor.analysis.trace_attribution import attribute
from layoutdoctor.analysis.trace_conversions import examine_recorded
from layoutdoctor.analysis.trace_convolutions import classify
from layoutdoctor.traces.recorded import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.records import Conversion
    from layoutdoctor.traces import RecordedTrace

Shape = tuple[int, ...]
Grid = tuple[int, int, int]

MOST_LISTED = 60
"""Mismatches kept in full for each item."""

_LAYOUT_LIKE = re.compile(r"nchw|nhwc|ncdhw|ndhwc|transpos|permut|layout|transform|reorder", re.IGNORECASE)
_READ = {"forward": ("input", "weight"), "backward": ("grad_output", "input", "weight")}
_WRITTEN = {"forward": ("output",), "backward": ("grad_input", "grad_weight")}


@dataclass(frozen=True)
class Call:
    """
    One convolution whose tensors are known.

    Attributes:
        name: Says which one it was.
        direction: ``forward`` or ``backward``.
        start: When it began on the host, in nanoseconds since the trace's base.
        end: When it was done there.
        shapes: Sizes by role, as in ``convolution_shapes.Role``.
        is_channels_last: The format in which cuDNN gets and returns all of its tensors.
        dtype: In torch's words.
    """

    name: str
    direction: str
    start: int
    end: int
    shapes: Mapping[str, Shape]
    is_channels_last: bool
    dtype: str

    def candidates(self, direction: str) -> dict[str, int]:
        """
        Which tensors a conversion may be of, and how often.

        What is read leaves the format of the call, what is written comes back to it; a tensor that satisfies both
        formats needs no conversion.

        Args:
            direction: Of the conversion.
        """
        leaves = (direction == "to_contiguous") == self.is_channels_last
        roles = (_READ if leaves else _WRITTEN)[self.direction]
        return {role: 2 if role == "grad_output" else 1 for role in roles if _has_two_formats(self.shapes[role])}


def _has_two_formats(shape: Shape) -> bool:
    spatial = 1
    for size in shape[2:]:
        spatial *= size
    return len(shape) > 2 and shape[1] > 1 and spatial > 1


@dataclass
class Comparison:
    """What was counted over some calls, and what did not agree, in full."""

    counts: Counter[str] = field(default_factory=Counter)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    kernel_names: Counter[str] = field(default_factory=Counter)
    unknown_names: Counter[str] = field(default_factory=Counter)
    calls: list[str] = field(default_factory=list)

    def mismatch(self, what: str, facts: dict[str, Any]) -> None:
        """
        Counts and keeps something that does not agree.

        Args:
            what: The count's name.
            facts: All that is known of it.
        """
        self.counts[what] += 1
        if len(self.mismatches) < MOST_LISTED:
            self.mismatches.append({"what": what, **facts})


@dataclass(frozen=True)
class Converted:
    """One conversion kernel: what was recorded, and what ``trace`` says of it."""

    kernel: str
    direction: str
    grid: Grid | None
    block: Grid | None
    record: Conversion


def compare_calls(trace: RecordedTrace, calls: Sequence[Call], blocks: Mapping[int, Grid] | None = None) -> Comparison:
    """
    Compares every conversion kernel of some calls with the rule and with what ``trace`` makes of it.

    Args:
        trace: Of the run.
        calls: What ran in it, none of them overlapping.
        blocks: Sizes of thread blocks by correlation, for the mismatches.
    """
    found = Comparison()
    by_call, names = _conversions_by_call(trace, calls, blocks or {}, found)
    found.counts["calls_without_kernels"] = len(calls) - len(names)
    for number, call in enumerate(calls):
        converted = by_call.get(number, [])
        found.counts[f"{call.direction}_calls"] += 1
        found.counts[f"{call.direction}_calls_converting"] += bool(converted)
        for direction in ("to_channels_last", "to_contiguous"):
            _compare_direction(call, direction, [one for one in converted if one.direction == direction], found)
        directions = Counter(one.direction for one in converted)
        what = ", ".join(f"{direction} x{count}" for direction, count in sorted(directions.items())) or "none"
        main = ", ".join(sorted(names.get(number, ()))) or "no kernel known to compute"
        found.calls.append(f"{call.name} {call.direction}: {what}; {main}")
    return found


def _conversions_by_call(
    trace: RecordedTrace, calls: Sequence[Call], blocks: Mapping[int, Grid], found: Comparison
) -> tuple[dict[int, list[Converted]], dict[int, set[str]]]:
    """Conversion kernels of each call; and of each call that launched any kernel, the names of those that compute."""
    classes, launch = classify(trace), attribute(trace).launch
    records = {record.id: record for record in examine_recorded(trace).kernels.conversions}
    by_call: dict[int, list[Converted]] = {}
    mains: dict[int, set[str]] = {}
    conversions = 0
    for row, index in enumerate(trace.kernels.name.tolist()):
        name = trace.names[index]
        place = _call_at(calls, int(trace.launches.start[launch[row]])) if launch[row] != NONE else None
        if place is not None:
            mains.setdefault(place, set())
        if classes.is_conversion[index]:
            # The records of conversions are numbered in the order of the kernels.
            record = records[f"conversion {conversions}"]
            conversions += 1
            grid = trace.grids[trace.kernels.grid[row]] if trace.kernels.grid[row] != NONE else None
            block = blocks.get(int(trace.kernels.correlation[row]))
            found.counts["conversion_kernels"] += 1
            found.kernel_names[name[:160]] += 1
            if place is None:
                found.counts["conversion_kernels_outside_calls"] += 1
            else:
                by_call.setdefault(place, []).append(Converted(name, classes.direction[index], grid, block, record))
            if classes.direction[index] not in ("to_channels_last", "to_contiguous"):
                found.mismatch("directions_unknown", {"kernel": name[:160], "grid": grid})
        elif place is not None and classes.is_main[index]:
            mains[place].add(name.removeprefix("void ")[:60])
        elif place is not None and classes.roles[index] in ("", "possible") and _LAYOUT_LIKE.search(name):
            found.unknown_names[name[:160]] += 1
    return by_call, mains


def _call_at(calls: Sequence[Call], moment: int) -> int | None:
    return next((number for number, call in enumerate(calls) if call.start <= moment <= call.end), None)


def _compare_direction(call: Call, direction: str, converted: Sequence[Converted], found: Comparison) -> None:
    """Compares the conversions of one call that go the same way."""
    candidates = call.candidates(direction)
    expected = {role: cudnn_grid(call.shapes[role]) for role in candidates}
    fitting = [tuple(role for role, grid in expected.items() if grid == one.grid) for one in converted]
    left_over = unmatched(fitting, candidates)
    for number, (one, fits) in enumerate(zip(converted, fitting, strict=True)):
        facts = {
            "call": f"{call.name} {call.direction}",
            "kernel": one.kernel[:160],
            "direction": direction,
            "grid": one.grid,
            "block": one.block,
            "expected_grids": expected,
            "shapes": dict(call.shapes),
            "dtype": call.dtype,
            "named": named_role(one.record),
            "named_shape": one.record.source.shape if one.record.source is not None else None,
        }
        if one.grid is None:
            found.counts["grids_not_recorded"] += 1
        elif not fits:
            found.mismatch("grids_of_no_tensor", facts)
        elif number in left_over:
            found.mismatch("grids_taken_twice", facts)
        else:
            found.counts["grids_as_expected"] += 1
        verdict = judge_name(call, one.record, fits)
        if verdict in ("named_wrong", "not_named"):
            found.mismatch(verdict, facts)
        else:
            found.counts[verdict] += 1
        if one.record.dtype != call.dtype:
            found.mismatch("dtypes_wrong", {**facts, "named_dtype": one.record.dtype})
        if one.record.direction != direction:
            found.mismatch("directions_wrong", {**facts, "named_direction": one.record.direction})


def judge_name(call: Call, record: Conversion, fits: Sequence[str]) -> str:
    """
    Whether a record names the tensor that it should.

    Args:
        call: What ran.
        record: What ``trace`` says of one of its conversions.
        fits: The tensors that the conversion can be of.

    Returns:
        The name of a count; see the module's docstring.
    """
    role = named_role(record)
    if role is None:
        if not fits:
            return "not_named_none_fits"
        return "not_named" if len(fits) == 1 else "not_named_several_fit"
    shape = record.source.shape if record.source is not None else None
    if role not in fits or shape is None or not _same_sizes(shape, call.shapes[role]):
        return "named_wrong"
    return "named_right" if len(fits) == 1 else "named_one_of_several"


def _same_sizes(one: Sequence[object], other: Shape) -> bool:
    """Whether sizes are the same; torch makes a 1-D convolution a 2-D one of height 1, and records either."""
    batch_and_channels = tuple(one[:2]) == other[:2]
    return batch_and_channels and [n for n in one[2:] if n != 1] == [n for n in other[2:] if n != 1]


def named_role(record: Conversion) -> str | None:
    """
    The role of the tensor that a record names, from what it says for readers.

    Args:
        record: Of a library's conversion.
    """
    is_written = (record.port or "").startswith("output")
    if record.tensor == "gradient":
        written = "grad_input" if record.port == "output 0" else "grad_weight"
        return written if is_written else "grad_output"
    if record.tensor == "activation":
        return "output" if is_written else "input"
    return "weight" if record.tensor == "weight" else None


def unmatched(fitting: Sequence[Sequence[str]], capacity: Mapping[str, int]) -> set[int]:
    """
    Which kernels stay without a tensor of their own where each tensor is converted so often at the most.

    Args:
        fitting: Of each kernel the tensors that it may be of.
        capacity: How often each tensor may be converted.

    Source:
        Augmenting paths for a largest bipartite matching (H. W. Kuhn, 1955).
    """
    taken: dict[str, list[int]] = {role: [] for role in capacity}

    def place(kernel: int, seen: set[str]) -> bool:
        for role in fitting[kernel]:
            if role in seen:
                continue
            seen.add(role)
            if len(taken[role]) < capacity[role]:
                taken[role].append(kernel)
                return True
            for other in list(taken[role]):
                if place(other, seen):
                    taken[role].remove(other)
                    taken[role].append(kernel)
                    return True
        return False

    return {kernel for kernel in range(len(fitting)) if not place(kernel, set())}


def result_of(
    comparison: Comparison, formats: Sequence[str], errors: Sequence[str], *, has_kernels: bool
) -> dict[str, Any]:
    """
    An item's result.

    Args:
        comparison: What was compared.
        formats: Results with other strides than expected.
        errors: Cases that did not run.
        has_kernels: Whether the profile holds any kernel of a device.
    """
    counts = comparison.counts
    fields = (
        "forward_calls",
        "forward_calls_converting",
        "backward_calls",
        "backward_calls_converting",
        "calls_without_kernels",
        "conversion_kernels",
        "conversion_kernels_outside_calls",
        "grids_as_expected",
        "grids_of_no_tensor",
        "grids_taken_twice",
        "grids_not_recorded",
        "named_right",
        "named_one_of_several",
        "not_named_several_fit",
        "not_named_none_fits",
        "not_named",
        "named_wrong",
        "dtypes_wrong",
        "directions_wrong",
        "directions_unknown",
    )
    return {
        "summary": _summary(counts, len(formats), len(errors), has_kernels=has_kernels),
        **{name: counts[name] for name in fields},
        "formats_wrong": len(formats),
        "not_run": len(errors),
        "mismatches": comparison.mismatches,
        "format_mismatches": list(formats[:MOST_LISTED]),
        "errors": list(errors[:MOST_LISTED]),
        "conversion_names": dict(comparison.kernel_names),
        "layout_like_unknown": dict(comparison.unknown_names),
        "calls": comparison.calls,
    }


def _summary(counts: Counter[str], formats: int, errors: int, *, has_kernels: bool) -> str:
    calls = counts["forward_calls"] + counts["backward_calls"]
    tail = f"; {errors} cases did not run" if errors else ""
    if not has_kernels:
        return f"no conversion kernels on this device: {calls} calls ran{tail}"
    lost = counts["calls_without_kernels"]
    tail += f"; {lost} calls of which the profiler recorded no kernel" if lost else ""
    wrong = counts["named_wrong"] + counts["dtypes_wrong"] + counts["directions_wrong"]
    return (
        f"{calls} calls, {counts['forward_calls_converting'] + counts['backward_calls_converting']} converting, "
        f"{counts['conversion_kernels']} conversion kernels: {counts['grids_as_expected']} grids as expected, "
        f"{counts['grids_of_no_tensor'] + counts['grids_taken_twice']} not; "
        f"{counts['named_right'] + counts['named_one_of_several']} tensors named rightly, {wrong} facts wrong, "
        f"{counts['not_named']} missed; {formats} results in another format than expected{tail}"
    )
