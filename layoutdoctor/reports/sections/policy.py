"""Makes the report of a policy: the best single choice, the choices by kind of call, and the costliest wrong choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import SYMBOLIC_SIZES
from layoutdoctor.reports.sections.rows import UNKNOWN_CELL, Overview, Table, TableRow, format_interval
from layoutdoctor.reports.sections.wording import baseline_phrase, clean_line, clean_name, shown_name
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import count_of, distinct, phrase, shape_words, shown

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.policy import Case, Policy


def build_policy_view(policy: Policy) -> Overview:
    """Returns the report of a policy."""
    names = distinct([policy.everywhere, *(case.use for case in policy.cases)])
    names += [SYMBOLIC_SIZES] if SYMBOLIC_SIZES not in names and _is_tried_with_symbols(policy) else []
    columns = [name for name in names if name != policy.baseline]
    head = ("call", "per call", "use", *map(shown_name, columns))
    rows = tuple(
        TableRow(
            (
                call_words(policy, case),
                format_seconds(case.baseline_seconds),
                clean_name(shown(case.use)),
                *(_ratio_cell(case, name) for name in columns),
            )
        )
        for case in policy.cases
    )
    return Overview(
        title=(
            "layoutdoctor policy",
            clean_name(policy.model),
            policy.mode,
            clean_name(policy.device_name or policy.device),
        ),
        headline=_headline(policy),
        lines=tuple(_lines(policy)),
        code=tuple(map(clean_line, (policy.how or "").splitlines())),
        tables=(Table(head, rows, title="Calls: the default's time, the choice, and ratios to the default"),),
    )


def call_words(policy: Policy, case: Case) -> str:
    """Describes a kind of call: ``"1x3x64x64"``, with the thread count and the weight if they differ between cases."""
    words = [", ".join(map(shape_words, case.shapes)) or "no tensor"]
    if len({one.thread_count for one in policy.cases}) > 1 and case.thread_count is not None:
        words.append(count_of(case.thread_count, "thread"))
    if len({one.weight for one in policy.cases}) > 1:
        words.append(f"{case.weight:g} of {sum(one.weight for one in policy.cases):g}")
    return ", ".join(words)


def _is_tried_with_symbols(policy: Policy) -> bool:
    return any(ratio.name == SYMBOLIC_SIZES for case in policy.cases for ratio in case.ratios)


def _ratio_cell(case: Case, name: str) -> str:
    return phrase("{}", next((one for one in case.ratios if one.name == name), None), format_interval) or UNKNOWN_CELL


def _headline(policy: Policy) -> str:
    default, single, each = (policy.seconds(name) for name in (policy.baseline, policy.everywhere, None))
    assert default is not None
    assert single is not None
    assert each is not None
    kinds = count_of(len(policy.cases), "kind of call", "kinds of call")
    if policy.everywhere == policy.baseline:
        first = f"{baseline_phrase(policy.baseline)} is the best single choice for {kinds}"
    else:
        speed = f"{format_ratio(default / single)} faster than {clean_name(shown(policy.baseline))}"
        first = f"{shown_name(policy.everywhere)} is the best single choice for {kinds}: {speed}"
    gain = single / each
    by_call = (
        f"a choice for each kind of call is {format_ratio(gain)} faster still"
        if gain > 1.005
        else "a choice for each kind of call gains nothing more"
    )
    return f"{first}; {by_call}."


def _lines(policy: Policy) -> Iterator[str]:
    worst = max(
        (
            (seconds / best, name, case)
            for case in policy.cases
            for name in {other.use for other in policy.cases} | {policy.everywhere}
            if (seconds := policy.seconds_of(case, name)) is not None
            and (best := policy.seconds_of(case, case.use)) is not None
        ),
        key=lambda entry: entry[0],
        default=None,
    )
    if worst is not None and worst[0] > 1.05:
        factor, name, case = worst
        yield (
            f"The costliest wrong choice: {clean_name(shown(name))} takes {format_ratio(factor)} as long as "
            f"{clean_name(shown(case.use))} for {call_words(policy, case)}"
        )
    if len({case.shapes for case in policy.cases}) > 1:
        once = f" ({shown_name(SYMBOLIC_SIZES)})" if _is_tried_with_symbols(policy) else ", which were not measured"
        yield f"Each shape is compiled with its own sizes; a model compiled once gets symbolic sizes{once}"
    if policy.mode == "training" and len({case.use for case in policy.cases}) > 1:
        yield "In training all calls update one model: use the best single choice for all of them"
    elif policy.how is not None and _leaves_something_out(policy):
        yield (
            "Frozen weights, packages and library switches apply to all calls or to none: the lines below choose among "
            "the other configurations"
        )


def _leaves_something_out(policy: Policy) -> bool:
    """Whether the lines to paste, which choose by shape, leave out the chosen configuration of some call."""
    by_name = {one.name: one for one in policy.configurations}
    used = [by_name[case.use] for case in policy.cases]
    are_mixed = len({(one.freezes, tuple(one.library_switches.items())) for one in used}) > 1
    return are_mixed or (len(used) > 1 and any(one.ahead_of_time for one in used))
