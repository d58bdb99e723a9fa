"""
The model would run faster if it were given channels_last input.

What it finds:
    A compiled configuration with model and input in channels_last, faster than the baseline, while an
    input of the example is in another format.

Why it costs:
    The convolutions run in channels-last anyway, or would; so the input is converted on each call, and the output
    back, weights that are contiguous too, and each layer that keeps the caller's format adds its own conversion.

Example:
    Images loaded as a contiguous ``[N, 3, H, W]`` batch, for a network that Inductor runs in channels-last throughout.

What to do:
    ``x = x.to(memory_format=torch.channels_last)`` where the batch is made (a DataLoader's collate function can do it
    on a worker) and ``model = model.to(memory_format=torch.channels_last)`` once. 5-D: ``torch.channels_last_3d``.

When it is fine:
    The input comes in this layout from outside and converting it would only move the cost; the measured gain does not
    contain that conversion. Not told where the outputs differ: such a model depends on its strides.

Source:
    PyTorch tutorial "Channels Last Memory Format in PyTorch"; measured here, in rounds in which all configurations
    take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import count_by_tensor, counted_conversions, dearest_of, sum_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import other_cure, severity_by_cure
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times, speed_words
from layoutdoctor.words import be, count_of, distinct, joined, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import (
        Configuration,
        Conversion,
        Diagnosis,
        Finding,
        InputTensor,
        Ratio,
        Trial,
    )

_TOLD = ("activation", "weight")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, about the baseline."""
    baseline, tensors = evidence.main_trial(diagnosis), evidence.inputs_not_channels_last(diagnosis)
    times = Times(diagnosis)
    gain = times.fastest(evidence.CHANNELS_LAST_CONFIGURATIONS)
    if baseline is None or gain is None or not tensors:
        return
    now, left = _converted(baseline), _converted(diagnosis.find_trial(gain.name))
    conversions = [c for c in counted_conversions(baseline) if now.get(c.tensor, 0) > left.get(c.tensor, 0)]
    yield RULE.finding(
        baseline.name,
        _message(baseline, tensors, gain, times.baseline, conversions, left),
        other_cure(times, baseline, _is_channels_last) or _suggestion(tensors),
        severity=severity_by_cure(diagnosis, gain, _is_channels_last),
        evidence=(gain.name, *(c.id for c in conversions)),
        at=dearest_of(conversions),
        seconds=times.saved_seconds(gain.name),
        bytes_moved=sum_known(c.bytes_moved for c in conversions),
    )


def _is_channels_last(cure: Configuration) -> bool:
    return cure.input_format == "channels_last"


def _converted(trial: Trial | None) -> dict[str, int]:
    """How many activations and weights are converted."""
    counts = count_by_tensor(counted_conversions(trial)) if trial is not None else {}
    return {kind: counts.get(kind, 0) for kind in _TOLD}


def _message(
    baseline: Trial,
    tensors: Sequence[InputTensor],
    gain: Ratio,
    name: str,
    conversions: Sequence[Conversion],
    left: Mapping[str, int],
) -> str:
    names = [f"{tensor.name or 'an input'} ({shape_words(tensor.shape)})" for tensor in tensors]
    wanted = " or ".join(_formats(tensors))
    message = f"{listing(names)} {be(len(names))} not {wanted}, and {speed_words(gain, name)}"
    has = f"{evidence.shown(baseline.name)} converts {_kinds(count_by_tensor(conversions))} on every call"
    cost = evidence.cost_words(baseline, sum_known(c.seconds for c in conversions))
    leaves = {kind: left[kind] for kind in distinct(c.tensor for c in conversions) if left[kind]}
    rest = f"{evidence.shown(gain.name)} {_kinds(leaves)}" if leaves else None
    return joined((message, joined((has, cost, rest), ", ") if conversions else None))


def _kinds(counts: Mapping[str, int]) -> str:
    return listing([count_of(counts[kind], kind) for kind in _TOLD if counts.get(kind)])


def _formats(tensors: Sequence[InputTensor]) -> list[str]:
    return distinct(CHANNELS_LAST_BY_RANK[len(tensor.shape)] for tensor in tensors)


def _suggestion(tensors: Sequence[InputTensor]) -> str:
    wanted = _formats(tensors)
    if len(wanted) > 1:
        return "convert each input and each parameter to the channels-last format of its rank, the parameters once"
    names = distinct(tensor.name or "x" for tensor in tensors)
    return "; ".join(f"{name} = {name}.to(memory_format=torch.{wanted[0]})" for name in ("model", *names))


RULE = document_rule("LD205", "input-format-mismatch", check, __doc__)
