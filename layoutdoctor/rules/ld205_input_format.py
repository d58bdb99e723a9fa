"""LD205: inputs that would make the model faster if they were channels_last."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from layoutdoctor.diagnosis import Configuration, Diagnosis, Finding, FxNode, InputTensor, Trial
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.counts import count_by_tensor, counted_conversions, dearest_of, sum_of_known
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import ERROR_GAIN, Times, other_cure, severity_of_gain, verified_cure
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import runs_convolution
from layoutdoctor.words import count_of, distinct, joined, listing, phrase, shape_words, shown, speed_words


def input_formats(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, about inputs of the baseline that should be channels-last."""
    baseline, tensors = evidence.main_trial(diagnosis), evidence.inputs_not_channels_last(diagnosis)
    times = Times(diagnosis)
    gain = times.fastest(evidence.CHANNELS_LAST_CONFIGURATIONS)
    if baseline is None or gain is None or not tensors:
        return
    ways = baseline, diagnosis.find_trial(gain.name)
    now, left = (count_by_tensor(counted_conversions(way)) if way is not None else {} for way in ways)
    fewer = [kind for kind in ("activation", "weight") if now.get(kind, 0) > left.get(kind, 0)]
    conversions = [c for c in counted_conversions(baseline) if c.tensor in fewer]
    names = [joined((tensor.name, shape_words(tensor.shape)), " ") for tensor in tensors]
    formats = distinct(CHANNELS_LAST_BY_RANK[len(tensor.shape)] for tensor in tensors)
    there = phrase(" (with it {})", [count_of(left[kind], kind) for kind in fewer if left.get(kind)], listing)
    converted = phrase("{} converted on every call", listing(count_of(now[kind], kind) for kind in fewer)) + there
    cost = wording.cost_words(
        baseline, sum_of_known(c.seconds for c in conversions), wording.estimate_words(conversions)
    )
    start = f"input that is not {' or '.join(formats)}: {listing(names)}"
    message = (start, speed_words(gain), joined((converted, cost), ", "))
    # The lines alone give the gain only if the configuration changes nothing else.
    further = gain.name != evidence.CHANNELS_LAST_CONFIGURATIONS[0]
    cure = verified_cure(diagnosis)
    is_error = cure is not None and _is_channels_last(cure.configuration) and gain.median >= 1 + ERROR_GAIN
    yield LD205.finding(
        baseline.name,
        joined(message),
        other_cure(times, baseline.name, _is_channels_last)
        or (f"use {shown(gain.name)}" if further else _lines(diagnosis, baseline, tensors, formats)),
        severity="error" if is_error else severity_of_gain(gain),
        evidence=(gain.name, *(c.id for c in conversions)),
        at=_first_reader(baseline, {len(tensor.shape) for tensor in tensors}) or dearest_of(conversions),
        seconds=None if baseline.seconds is None else baseline.seconds * (1 - 1 / gain.median),
        bytes_moved=sum_of_known(c.bytes_moved for c in conversions),
    )


def _first_reader(trial: Trial, ranks: Collection[int]) -> FxNode | None:
    """Returns the first convolution that an input of one of these ranks reaches; None if the graphs show none."""
    for graph in evidence.forward_graphs(trial):
        reached = set[str]()
        for node in graph.nodes:
            is_reached = not reached.isdisjoint(node.inputs)
            if is_reached and runs_convolution(node) and not node.backward:
                return node
            is_input = node.op == "placeholder" and node.tensor == "activation"
            if is_reached or (is_input and node.layout is not None and len(node.layout.shape) in ranks):
                reached.add(node.name)
    return None


def _is_channels_last(cure: Configuration) -> bool:
    return cure.input_format == "channels_last"


def _lines(diagnosis: Diagnosis, trial: Trial, tensors: Sequence[InputTensor], formats: Sequence[str]) -> str:
    if len({*formats, *evidence.formats_of_weights(trial)}) > 1:
        return f"convert each input, and once each parameter, {wording.BY_RANK}"
    names = [*(["model"] if diagnosis.subject.parameter_formats else []), *(tensor.name or "x" for tensor in tensors)]
    return "; ".join(f"{name} = {name}.to(memory_format=torch.{formats[0]})" for name in distinct(names))


LD205 = Rule("LD205", "input-format-mismatch", input_formats)
