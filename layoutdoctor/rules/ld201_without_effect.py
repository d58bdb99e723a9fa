"""LD201: layout optimization that was applied without effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, Trial
from layoutdoctor.examination.counts import counted_conversions, launch_count, sum_of_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import OFF, SWITCH_OFF, Times, advised, other_cure, severity_of_gain
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.decisions import are_products, is_one_dimensional, leaves_layouts_to_inductor
from layoutdoctor.rules.evidence import CHANNELS_LAST_CONFIGURATIONS
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import count_of, distinct, joined, line_words, listing, phrase, shown, speed_words


def without_effect(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for the first configuration in which applied layout optimization changes nothing."""
    for trial in evidence.own_trials(diagnosis):
        applied = [card for card in trial.decisions if card.applied and card.convolution_count]
        idle = [c for c in applied if not c.channels_last_convolution_count and not is_one_dimensional(c)]
        if not idle or not leaves_layouts_to_inductor(trial):
            continue
        convolutions = [convolution for decision in idle for convolution in decision.convolutions]
        if are_products(diagnosis, trial, convolutions) and not _returned_of(diagnosis, trial)[1]:
            return
        count = sum(decision.convolution_count for decision in idle)
        ranks = {convolution.rank for convolution in convolutions}
        why = " (2-D only)" if ranks and not ranks & {None, 2} else ""
        reach = f"layout optimization reaches 0 of {count_of(count, 'convolution')}{why}"
        ways = OFF if _cure_by_off(diagnosis, trial) is not None else CHANNELS_LAST_CONFIGURATIONS
        yield LD201.finding(
            trial.name,
            joined((reach, _returned_words(diagnosis, trial))),
            _by_hand(diagnosis, trial, ranks),
            severity=severity_of_gain(Times(diagnosis).fastest(ways)),
            evidence=[convolution.node for convolution in convolutions],
            at=next(iter(convolutions), None),
        )
        return


def _returned_words(diagnosis: Diagnosis, trial: Trial) -> str:
    """Describes the tensors that the compiler converts back from channels_last_3d; empty if there are none."""
    where, conversions = _returned_of(diagnosis, trial)
    if not conversions:
        return ""
    outputs = [conversion for conversion in conversions if conversion.role == "exit"]
    back = [conversion for conversion in conversions if conversion.role != "exit"]
    breakers = [breaker for graph in where.graphs for breaker in graph.breakers]
    ends = distinct(f"{b.op} ({line_words(b.location)})" for b in breakers if b.location is not None)
    words = (
        f"{count_of(len(back), 'tensor')} converted back from channels_last_3d{_cost_words(back)}" if back else None,
        f"{count_of(len(outputs), 'output')} copied to {'it' if back else 'channels_last_3d'}{_cost_words(outputs)}"
        if outputs
        else None,
        phrase("the format ends at {}", listing(ends, 3)),
    )
    off = _cure_by_off(diagnosis, where)
    left = None
    if off is not None:
        count = len(_compiled_conversions(off)) or "none"
        left = f"left without layout optimization: {count} of {len(_compiled_conversions(where))}"
    return joined((f"{shown(where.name)}: {joined(words, ', ')}", left))


def _cost_words(conversions: Sequence[Conversion]) -> str:
    time = phrase(" ({})", sum_of_known(c.seconds for c in conversions if not c.fused), format_seconds)
    return time or phrase(" ({})", sum_of_known(c.bytes_moved for c in conversions), format_bytes)


def _compiled_conversions(trial: Trial) -> list[Conversion]:
    """Returns the conversions that the compiler itself adds to each call."""
    found = [c for graph in trial.graphs for c in graph.conversions]
    return [c for c in found if c.owner == "compiler" and c.direction != "none"]


def _cure_by_off(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """Returns the trial that equals ``trial`` without layout optimization, if it converts fewer tensors; else None."""
    wanted = msgspec.structs.replace(trial.configuration, layout_optimization="off")
    same = (o for o in diagnosis.trials if msgspec.structs.replace(o.configuration, name=wanted.name) == wanted)
    found = [off for one in same if (off := diagnosis.measured_trial(one.name)) is not None and off.status == "ok"]
    off = next((off for off in found if len(off.graphs) == len(trial.graphs)), None)
    is_cure = off is not None and len(_compiled_conversions(off)) < len(_compiled_conversions(trial))
    return off if is_cure else None


def _returned_of(diagnosis: Diagnosis, trial: Trial) -> tuple[Trial, list[Conversion]]:
    """Returns the first trial in which tensors are converted back from channels_last_3d, and these conversions."""
    others = (diagnosis.measured_trial(name) for name in CHANNELS_LAST_CONFIGURATIONS)
    candidates = [one for one in (trial, *others) if one is not None]
    found = evidence.first_showing(candidates, lambda one: [c for c in _compiled_conversions(one) if _is_returned(c)])
    return next(found, (trial, []))


def _is_returned(conversion: Conversion) -> bool:
    """Whether the compiler converts a tensor out of channels_last_3d, or an output back to this format."""
    source, target = (layout.memory_formats if layout else () for layout in (conversion.source, conversion.target))
    if conversion.role == "exit":
        source, target = target, source
    return source == ("channels_last_3d",) and "contiguous_format" in target


def _by_hand(diagnosis: Diagnosis, trial: Trial, ranks: set[int | None]) -> str | None:
    """Suggests to switch the optimization off, convert by hand or keep the format; None if nothing is to be done."""
    times = Times(diagnosis)
    if _cure_by_off(diagnosis, trial) is not None:
        return advised(times, trial, OFF, SWITCH_OFF)
    wanted = "channels_last_3d" if ranks == {3} else "channels_last"
    if diagnosis.subject.parameter_formats.keys() == {wanted}:
        if not _returned_of(diagnosis, trial)[1]:
            return None  # the model already has the format that the optimization cannot give it
        return "compare with eager, where no compiler brings tensors back to contiguous (pytorch #177277)"
    advice = f"convert the parameters and the input to torch.{wanted} by hand"
    gain = times.fastest(CHANNELS_LAST_CONFIGURATIONS)
    last = diagnosis.measured_trial(CHANNELS_LAST_CONFIGURATIONS[0])
    why = ": layout optimization does not do it"
    if last is not None and (gain is None or gain.name != last.name) and _cure_by_off(diagnosis, last) is not None:
        advice, why = f'{advice}, compile with options={{"layout_optimization": False}}', ""
    if gain is None and (more := _more_in_all_ways(diagnosis, trial)) > 0:
        what = f"{count_of(more, 'more tensor is', 'more tensors are')} converted in each call"
        return f"keep today's memory format: with torch.{wanted}, {what}"
    if gain is None:
        return advised(times, trial, CHANNELS_LAST_CONFIGURATIONS, f"{advice}, and measure{why}")
    against = other_cure(times, trial.name, lambda cure: cure.input_format == "channels_last")
    return against or f"{advice}: {speed_words(gain)}"


def _more_in_all_ways(diagnosis: Diagnosis, trial: Trial) -> int:
    """Returns how many more tensors every channels-last trial converts; 0 if such a trial was timed, or none ran."""
    found = (diagnosis.measured_trial(name) for name in CHANNELS_LAST_CONFIGURATIONS)
    ways = [one for one in found if one is not None and one.status == "ok"]
    if not ways or any(one.measurement is not None for one in ways):
        return 0
    return min(launch_count(counted_conversions(one)) for one in ways) - launch_count(counted_conversions(trial))


LD201 = Rule("LD201", "layout-optimization-without-effect", without_effect)
