"""
Assertions on layouts for a project's own tests.

``assert_no_redundant_conversions(model, x)`` fails where a diagnosis proves round trips, and raises where it could not
look: it never passes for want of evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any

from layoutdoctor.diagnosis.accepted import AcceptedFile, accept, load_accepted
from layoutdoctor.diagnosis.diagnosis import Diagnosis
from layoutdoctor.diagnosis.subject import Configuration
from layoutdoctor.errors import InconclusiveError, UsageError
from layoutdoctor.examination.costs import all_conversions_of
from layoutdoctor.examination.gaps import examination_of
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.sections.wording import project_path
from layoutdoctor.rules.round_trips import LD101 as ROUND_TRIP
from layoutdoctor.run.diagnose import record_only
from layoutdoctor.units import format_bytes, format_seconds, format_share
from layoutdoctor.words import count_of, distinct, layout_words, op_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.diagnosis.trial import Trial

DEFAULT_CONFIGURATIONS = ("inductor",)
"""What ``torch.compile(model)(x)`` does, with model and input as the test made them."""

_MOST_NAMED = 10
_MOST_REASONS = 5


@dataclass(frozen=True)
class _Wasted:
    """The round trips of one trial that are not accepted."""

    trial: Trial
    pairs: tuple[RedundantPair, ...]

    @property
    def seconds(self) -> float | None:
        """What they took together; None where one of them was not measured."""
        known = [pair.seconds for pair in self.pairs if pair.seconds is not None]
        return sum(known) if len(known) == len(self.pairs) else None

    @property
    def share(self) -> float | None:
        """The same over the kernel time; None where either is not known."""
        total = self.trial.kernels.seconds if self.trial.kernels is not None else None
        return self.seconds / total if self.seconds is not None and total else None

    def exceeds(self, max_share: float) -> bool:
        """Whether they take more than is allowed; a cost that is not known does."""
        return bool(self.pairs) and (max_share <= 0 or self.share is None or self.share > max_share)


def assert_no_redundant_conversions(
    model: Callable[..., Any] | Diagnosis,
    example_input: Any = None,
    *,
    mode: Mode = "inference",
    configurations: str | Configuration | Iterable[str | Configuration] = DEFAULT_CONFIGURATIONS,
    accepted: str | PathLike[str] | Iterable[str] = (),
    max_share: float = 0.0,
    allow_gaps: bool = False,
) -> Diagnosis:
    """
    Fails where a model, run as it is, converts a layout and converts it back.

    Args:
        model: An nn.Module or any callable, which is copied and diagnosed; or a ready ``Diagnosis``, also one of a
            trace, for several checks on one of them.
        example_input: A Tensor, a tuple of positional or a dict of keyword arguments; nothing with a ``Diagnosis``.
        mode: ``inference`` or ``training``; a ``Diagnosis`` has its own.
        configurations: Which to check: names or Configuration values. ``inductor`` is ``torch.compile(model)(x)`` as
            the test made both; ``inductor-channels-last`` and ``eager-channels-last`` convert copies of both first;
            ``eager`` is the model without a compiler, in which a contiguous model on a CPU has round trips in oneDNN
            as a rule. In a trace there is one, ``recorded``, which the default means there.
        accepted: A file written by ``--write-accepted``, or the paths of modules whose round trips are accepted.
        max_share: The part of the kernel time, 0 to 1, that round trips which are not accepted may take in each
            configuration; 0 allows none. A round trip whose time is not known is never allowed.
        allow_gaps: Whether a check may pass though a part of the model was not understood or not recorded (custom
            operations, symbolic sizes): round trips there would not be seen.

    Returns:
        The diagnosis, for further checks. Nothing was timed.

    Raises:
        AssertionError: There are round trips; its first lines say how many, where and what they cost.
        InconclusiveError: There are none, but not everything could be examined, so that this proves nothing.
        UsageError: An argument is wrong.
        RecordError: The file of accepted findings cannot be read.
        SubjectError: The model does not run in eager mode.
    """
    __tracebackhide__ = True
    _check(max_share)
    file, modules = _split_accepted(accepted)
    diagnosis, names = _diagnosis_of(model, example_input, mode, configurations)
    if file is not None:
        diagnosis = accept(scrub(diagnosis), file).diagnosis
    trials = {trial.name: trial for name in names if (trial := diagnosis.measured_trial(name)) is not None}
    wasted = [_wasted(diagnosis, trial, modules) for trial in trials.values()]
    failing = [found for found in wasted if found.exceeds(max_share)]
    if failing:
        raise AssertionError(_describe(diagnosis, failing, max_share))
    _check_evidence(diagnosis, names, allow_gaps=allow_gaps)
    return diagnosis


def diagnose_quickly(
    model: Callable[..., Any],
    example_input: Any,
    *,
    mode: Mode = "inference",
    configurations: object = DEFAULT_CONFIGURATIONS,
) -> Diagnosis:
    """
    A diagnosis for the sake of its conversions: all is compiled and profiled, and nothing is timed.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run in eager mode.
        TransportError: The model cannot travel to another process.
    """
    if example_input is None:
        raise UsageError(
            "cannot diagnose a model without an example input: expected a tensor, a tuple of positional or a dict of "
            "keyword arguments as the second argument"
        )
    chosen: Any = (configurations,) if isinstance(configurations, str) else configurations  # none is made of these
    return record_only(model, example_input, mode=mode, configurations=chosen)


def _check(max_share: object) -> None:
    if isinstance(max_share, bool) or not isinstance(max_share, Real) or not 0 <= float(max_share) < 1:
        raise UsageError(
            f"cannot allow a share of {max_share!r}: expected a part of the kernel time of at least 0 and below 1, "
            "such as 0.02"
        )


def _split_accepted(accepted: object) -> tuple[AcceptedFile | None, frozenset[str]]:
    if isinstance(accepted, (str, PathLike)):
        return load_accepted(str(accepted)), frozenset()
    listed = tuple(accepted) if isinstance(accepted, Iterable) else (accepted,)
    wrong = [value for value in listed if not isinstance(value, str)]
    if wrong:
        raise UsageError(
            f"cannot accept {wrong[0]!r}: expected the path of a file written by --write-accepted, or a sequence of "
            "module paths such as ('body.1',)"
        )
    return None, frozenset(str(value) for value in listed)


def _diagnosis_of(
    model: Callable[..., Any] | Diagnosis, example_input: Any, mode: Mode, configurations: object
) -> tuple[Diagnosis, tuple[str, ...]]:
    if isinstance(model, Diagnosis):
        if example_input is not None:
            raise UsageError("cannot use an example input with a ready Diagnosis: expected the diagnosis alone")
        if mode not in ("inference", model.subject.mode):
            raise UsageError(f"cannot check mode {mode!r} in a ready Diagnosis of mode {model.subject.mode!r}")
        return model, _names_in(model, configurations)
    diagnosis = diagnose_quickly(model, example_input, mode=mode, configurations=configurations)
    return diagnosis, tuple(trial.name for trial in diagnosis.trials)


def _names_in(diagnosis: Diagnosis, configurations: object) -> tuple[str, ...]:
    """The configurations of a ready diagnosis that are meant."""
    if diagnosis.subject.mode == "trace" and configurations is DEFAULT_CONFIGURATIONS:
        return tuple(trial.name for trial in diagnosis.trials)
    if isinstance(configurations, (str, Configuration)):
        if configurations in ("default", "all"):
            return tuple(trial.name for trial in diagnosis.trials)
        text = configurations.name if isinstance(configurations, Configuration) else configurations
        return tuple(name.strip() for name in text.split(",") if name.strip())
    listed = tuple(configurations) if isinstance(configurations, Iterable) else (configurations,)
    wrong = [value for value in listed if not isinstance(value, (str, Configuration))]
    if wrong:
        raise UsageError(f"cannot use {wrong[0]!r} as a configuration: expected a name such as 'inductor'")
    return tuple(value.name if isinstance(value, Configuration) else str(value) for value in listed)


def _wasted(diagnosis: Diagnosis, trial: Trial, modules: frozenset[str]) -> _Wasted:
    covered = _accepted_ids(diagnosis, trial)
    pairs = tuple(
        pair
        for pair in trial.redundant_pairs
        if pair.confidence != "order"  # a guess from a trace, which proves nothing
        and pair.module not in modules
        and not {pair.first, pair.second} <= covered
    )
    return _Wasted(trial, pairs)


def _accepted_ids(diagnosis: Diagnosis, trial: Trial) -> frozenset[str]:
    """The conversions that accepted findings about round trips rest on."""
    return frozenset(
        id
        for finding in diagnosis.findings
        if finding.code == ROUND_TRIP.code and finding.accepted is not None and finding.configuration == trial.name
        for id in finding.evidence
    )


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
        f"cannot say that {diagnosis.subject.name} has no redundant conversions: none was found, but not everything "
        f"was examined: {'; '.join([*reasons[:_MOST_REASONS], *more])}{allow}"
    )


def _describe(diagnosis: Diagnosis, failing: list[_Wasted], max_share: float) -> str:
    lines: list[str] = []
    for wasted in failing:
        lines.append(f"{_headline(diagnosis, wasted)}{_allowed(max_share)}")
        conversions = {conversion.id: conversion for conversion in all_conversions_of(wasted.trial)}
        costliest = sorted(wasted.pairs, key=lambda pair: pair.seconds or 0.0, reverse=True)
        lines += [f"  {_line(pair, conversions)}" for pair in costliest[:_MOST_NAMED]]
        if len(costliest) > _MOST_NAMED:
            lines.append(f"  and {len(costliest) - _MOST_NAMED} more")
        lines += [f"  what to do: {text}" for text in _suggestions(diagnosis, wasted.trial)]
    lines.append(
        "To see all of it: print(layoutdoctor.diagnose(model, example_input)). To live with them: accepted=..."
    )
    return "\n".join(lines)


def _allowed(max_share: float) -> str:
    return f"; at most {format_share(max_share)} is allowed" if max_share > 0 else ""


def _headline(diagnosis: Diagnosis, wasted: _Wasted) -> str:
    subject = diagnosis.subject
    where = ", ".join(part for part in (subject.mode, subject.device, wasted.trial.name) if part)
    costs = _cost(wasted.seconds, sum(pair.bytes_moved or 0 for pair in wasted.pairs))
    share = f" ({format_share(wasted.share)} of the kernel time)" if wasted.share is not None else ""
    return f"{count_of(len(wasted.pairs), 'redundant conversion pair')} in {subject.name} ({where}): {costs}{share}"


def _cost(seconds: float | None, bytes_moved: int | None) -> str:
    known = seconds is not None and math.isfinite(seconds)
    time = format_seconds(seconds) if known and seconds is not None else "time not recorded"
    return f"{time}, {format_bytes(bytes_moved)} moved" if bytes_moved else time


def _line(pair: RedundantPair, conversions: dict[str, Conversion]) -> str:
    first, second = conversions.get(pair.first), conversions.get(pair.second)
    what = "a layout and back"
    if first is not None and second is not None:
        what = " -> ".join(layout_words(layout) for layout in (first.source, first.target, second.target))
    between = f" around {', '.join(op_words(op) for op in pair.between)}" if pair.between else ", back to back"
    place = "  ".join(part for part in (_location(pair), pair.module or "") if part)
    code = f"  `{pair.location.code}`" if pair.location is not None and pair.location.code else ""
    return f"{place or 'place not recorded'}{code}: {what}{between}; {_cost(pair.seconds, pair.bytes_moved)}"


def _location(pair: RedundantPair) -> str:
    if pair.location is None:
        return ""
    return f"{project_path(pair.location.file) or pair.location.file}:{pair.location.line}"


def _suggestions(diagnosis: Diagnosis, trial: Trial) -> list[str]:
    own = (f for f in diagnosis.findings if f.code == ROUND_TRIP.code and f.configuration == trial.name)
    return distinct(finding.suggestion or None for finding in own)
