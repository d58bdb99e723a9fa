"""
An assertion for a project's own tests: it fails if a model converts a tensor to another layout and back.

The assertion passes only if the model could be examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from layoutdoctor.diagnosis import Configuration, Conversion, Diagnosis, RedundantPair, Trial
from layoutdoctor.diagnosis.accepted import AcceptedFile, accept, load_accepted
from layoutdoctor.diagnosis.configurations import SETS
from layoutdoctor.errors import InconclusiveError, UsageError
from layoutdoctor.examination.counts import all_conversions_of
from layoutdoctor.examination.gaps import examination_of
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.sections.wording import clean, place_of, project_path
from layoutdoctor.rules.ld101_round_trip import LD101 as ROUND_TRIP
from layoutdoctor.run.diagnose import ASSERTED_CONFIGURATIONS, record_only
from layoutdoctor.units import format_bytes, format_seconds, format_share, sum_if_all_known
from layoutdoctor.words import count_of, distinct, joined, layout_words, op_words

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Mode

_MOST_NAMED = 10
_MOST_REASONS = 5


class _Wasted(NamedTuple):
    """
    The proved round trips of one trial that are not accepted.

    Attributes:
        pairs: The round trips.
        seconds: Total time of the round trips; None if the time of any round trip is not known.
        share: ``seconds`` divided by the kernel time; None if either time is not known.
    """

    trial: Trial
    pairs: tuple[RedundantPair, ...]
    seconds: float | None
    share: float | None


def assert_no_redundant_conversions(
    model: Callable[..., Any] | Diagnosis,
    example_input: Any = None,
    *,
    mode: Mode = "inference",
    configurations: str | Configuration | Iterable[str | Configuration] = ASSERTED_CONFIGURATIONS,
    accepted: str | PathLike[str] | Iterable[str] = (),
    max_share: float = 0.0,
    allow_gaps: bool = False,
) -> Diagnosis:
    """
    Fails if a model converts a tensor to another layout and back.

    Args:
        model: An nn.Module or any callable, which is copied and diagnosed; or a ``Diagnosis``, also of a trace. For
            several checks, diagnose once and pass the ``Diagnosis``.
        example_input: A Tensor, a tuple of positional arguments or a dict of keyword arguments; None with a
            ``Diagnosis``.
        mode: ``inference`` or ``training``; a ``Diagnosis`` has its own mode.
        configurations: Configurations to check: names or Configuration values. ``inductor`` is
            ``torch.compile(model)(x)`` with model and input as the test made them. ``inductor-channels-last`` and
            ``eager-channels-last`` convert copies of model and input to channels_last. ``eager`` is the model without
            a compiler; a contiguous model on a CPU then usually has round trips in oneDNN. For a trace, the default
            selects its only configuration, ``recorded``.
        accepted: A file written by ``--write-accepted``, or the paths of modules whose round trips are accepted.
        max_share: Largest share of the kernel time, from 0 to below 1, that the round trips of a configuration may
            take. 0 allows no round trip. Accepted round trips do not count. An unknown time always fails.
        allow_gaps: Whether the check may pass although a part of the model (a custom operation, symbolic sizes) was not
            understood or not recorded. Round trips in such a part are not found.

    Returns:
        The diagnosis, for further checks. Calls were not timed in it.

    Raises:
        AssertionError: Round trips take more than ``max_share``. The first lines give their number, places and cost.
        InconclusiveError: No round trip fails the check, but a part of the model was not examined and may have some.
        UsageError: An argument is wrong.
        RecordError: The file of accepted findings cannot be read.
        SubjectError: The model cannot be sent to another process, or does not run in eager mode.
        UnsupportedTorchError: torch is not installed.
    """
    __tracebackhide__ = True
    check_share(max_share)
    file, modules = _split_accepted(accepted)
    diagnosis, names = _diagnosis_of(model, example_input, mode, configurations)
    if file is not None:
        diagnosis = accept(scrub(diagnosis), file).diagnosis
    trials = {trial.name: trial for name in names if (trial := diagnosis.measured_trial(name)) is not None}
    wasted = [_wasted(diagnosis, trial, modules) for trial in trials.values()]
    failing = [one for one in wasted if one.pairs and (max_share <= 0 or one.share is None or one.share > max_share)]
    if failing:
        raise AssertionError(_describe(diagnosis, failing, max_share))
    _check_evidence(diagnosis, names, allow_gaps=allow_gaps)
    return diagnosis


def check_share(max_share: object) -> None:
    """Raises ``UsageError`` unless ``max_share`` is a number of at least 0 and below 1."""
    if isinstance(max_share, bool) or not isinstance(max_share, Real) or not 0 <= float(max_share) < 1:
        raise UsageError(
            f"cannot allow a share of {max_share!r}: expected a part of the kernel time of at least 0 and below 1, "
            "such as 0.02"
        )


def _split_accepted(accepted: object) -> tuple[AcceptedFile | None, frozenset[str]]:
    if isinstance(accepted, (str, PathLike)):
        return load_accepted(str(accepted)), frozenset()
    for value in _listed(accepted):
        if not isinstance(value, str):
            raise UsageError(
                f"cannot accept {value!r}: expected the path of a file written by --write-accepted, or a sequence of "
                "module paths such as ('body.1',)"
            )
    return None, frozenset(map(str, _listed(accepted)))


def _diagnosis_of(
    model: Callable[..., Any] | Diagnosis, example_input: Any, mode: Mode, configurations: object
) -> tuple[Diagnosis, tuple[str, ...]]:
    if isinstance(model, Diagnosis):
        if example_input is not None:
            raise UsageError("cannot use an example input with a ready Diagnosis: expected the diagnosis alone")
        if mode not in ("inference", model.subject.mode):
            raise UsageError(f"cannot check mode {mode!r} in a ready Diagnosis of mode {model.subject.mode!r}")
        return model, _names_in(model, configurations)
    diagnosis = record_only(model, example_input, mode=mode, configurations=configurations)
    return diagnosis, tuple(trial.name for trial in diagnosis.trials)


def _names_in(diagnosis: Diagnosis, configurations: object) -> tuple[str, ...]:
    """Returns the names of the chosen configurations of a ready diagnosis."""
    tried = tuple(trial.name for trial in diagnosis.trials)
    if diagnosis.is_recording and configurations is ASSERTED_CONFIGURATIONS:
        return tried
    names: list[str] = []
    for value in _listed(configurations):
        if isinstance(value, Configuration):
            names.append(value.name)
        elif isinstance(value, str):
            names += [name.strip() for name in value.split(",") if name.strip()]
        else:
            raise UsageError(f"cannot use {value!r} as a configuration: expected a name such as 'inductor'")
    return tried if len(names) == 1 and names[0] in SETS else tuple(names)


def _listed(values: object) -> tuple[object, ...]:
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)


def _wasted(diagnosis: Diagnosis, trial: Trial, modules: frozenset[str]) -> _Wasted:
    own = [one for one in diagnosis.findings if one.code == ROUND_TRIP.code and one.configuration == trial.name]
    covered = {id for finding in own if finding.accepted is not None for id in finding.evidence}
    pairs = tuple(
        pair
        for pair in trial.redundant_pairs
        if pair.confidence != "order"  # a guess from the order of kernels in a trace, not a proof
        and pair.module not in modules
        and not {pair.first, pair.second} <= covered
    )
    seconds = sum_if_all_known(0.0, *(pair.seconds for pair in pairs))
    total = trial.kernels.seconds if trial.kernels is not None else None
    return _Wasted(trial, pairs, seconds, seconds / total if seconds is not None and total else None)


def _check_evidence(diagnosis: Diagnosis, names: tuple[str, ...], *, allow_gaps: bool) -> None:
    reasons: list[str] = [] if names else ["no configuration was named"]
    can_be_allowed = True
    for name in names:
        examination = examination_of(diagnosis, name)
        can_be_allowed = can_be_allowed and not examination.blockers
        missing = (*examination.blockers, *(() if allow_gaps else examination.gaps))
        reasons += [f"{name}: {reason}" for reason in missing]
    if not reasons:
        return
    more = [f"and {len(reasons) - _MOST_REASONS} more"] if len(reasons) > _MOST_REASONS else []
    allow = "; pass allow_gaps=True to check the rest" if names and can_be_allowed else ""
    raise InconclusiveError(
        f"cannot say that {diagnosis.subject.name} has no redundant conversions: no round trip fails the check, but "
        f"not everything was examined: {'; '.join([*reasons[:_MOST_REASONS], *more])}{allow}"
    )


def _describe(diagnosis: Diagnosis, failing: list[_Wasted], max_share: float) -> str:
    lines: list[str] = []
    subject = diagnosis.subject
    allowed = f"; at most {format_share(max_share)} is allowed" if max_share > 0 else ""
    for trial, pairs, seconds, share in failing:
        where = joined((subject.mode, subject.device, trial.name), ", ")
        cost = _cost(seconds, sum(pair.bytes_moved or 0 for pair in pairs))
        cost += f" ({format_share(share)} of the kernel time)" if share is not None else ""
        lines.append(
            f"{count_of(len(pairs), 'redundant conversion pair')} in {subject.name} ({where}): {cost}{allowed}"
        )
        conversions = {conversion.id: conversion for conversion in all_conversions_of(trial)}
        costliest = sorted(pairs, key=lambda pair: pair.seconds or 0.0, reverse=True)
        lines += [f"  {_line(pair, conversions)}" for pair in costliest[:_MOST_NAMED]]
        if len(pairs) > _MOST_NAMED:
            lines.append(f"  and {len(pairs) - _MOST_NAMED} more")
        own = (one for one in diagnosis.findings if one.code == ROUND_TRIP.code and one.configuration == trial.name)
        lines += [f"  what to do: {text}" for text in distinct(finding.suggestion or None for finding in own)]
    lines.append("The whole report: print(layoutdoctor.diagnose(model, example_input)). To accept pairs: accepted=...")
    return "\n".join(lines)


def _cost(seconds: float | None, bytes_moved: int | None) -> str:
    time = "time not recorded" if seconds is None else format_seconds(seconds)
    return f"{time}, {format_bytes(bytes_moved)} moved" if bytes_moved else time


def _line(pair: RedundantPair, conversions: dict[str, Conversion]) -> str:
    first, second = conversions.get(pair.first), conversions.get(pair.second)
    layouts = "a layout and back"
    if first is not None and second is not None:
        layouts = " -> ".join(layout_words(layout) for layout in (first.source, first.target, second.target))
    between = f" around {', '.join(op_words(op) for op in pair.between)}" if pair.between else ", back to back"
    location, code = pair.location, ""
    if location is not None:
        code = f"  `{clean(location.code)}`" if location.code else ""
        location = msgspec.structs.replace(location, file=project_path(location.file) or location.file)
    where = place_of(location, pair.module) or "place not recorded"
    return f"{where}{code}: {layouts}{between}; {_cost(pair.seconds, pair.bytes_moved)}"
