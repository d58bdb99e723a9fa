"""
The model would run faster if it were given channels_last input.

What it finds:
    A compiled configuration with model and input in channels_last, measurably faster than the baseline, while an
    input of the example is in another format.

Why it costs:
    The convolutions run in channels-last anyway, or would; so the input is converted on each call, and the output
    back, and each layer that keeps the caller's format adds its own conversion.

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

from layoutdoctor.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Conversion, Diagnosis, InputTensor, RatioInterval, Severity, Trial

CODE = "LD205"
NAME = "input-format-mismatch"


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding at most, about the baseline.

    Args:
        diagnosis: Any diagnosis.
    """
    baseline, tensors = evidence.main_trial(diagnosis), evidence.inputs_not_channels_last(diagnosis)
    gain = evidence.fastest_of(diagnosis, evidence.CHANNELS_LAST_CONFIGURATIONS)
    if baseline is None or diagnosis.comparison is None or gain is None or not tensors:
        return
    conversions = [c for c in evidence.conversions_of(baseline) if c.tensor == "activation"]
    seconds = evidence.seconds_lost(diagnosis, gain.name)
    worst = max(conversions, key=lambda c: (c.seconds or 0.0, c.bytes_moved or 0), default=None)
    yield Finding(
        code=CODE,
        rule=NAME,
        severity=_severity(diagnosis),
        configuration=baseline.name,
        message=_message(baseline, tensors, gain, diagnosis.comparison.baseline, conversions),
        suggestion=_suggestion(tensors),
        location=worst.location if worst is not None else None,
        module=worst.module if worst is not None else None,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in conversions),
        evidence=(gain.name, *(c.id for c in conversions)),
    )


def _severity(diagnosis: Diagnosis) -> Severity:
    cure = evidence.verified_cure(diagnosis)
    return "error" if cure is not None and cure.configuration.input_format == "channels_last" else "warning"


def _message(
    baseline: Trial, tensors: Sequence[InputTensor], gain: RatioInterval, name: str, conversions: Sequence[Conversion]
) -> str:
    names = [f"{tensor.name or 'an input'} ({shape_words(tensor.shape)})" for tensor in tensors]
    verb, formats = ("is", _formats(tensors)) if len(names) == 1 else ("are", _formats(tensors))
    message = f"{listing(names)} {verb} not {formats}, and {wording.speed_words(gain, name)}"
    if not conversions:
        return message
    cost = wording.cost_words(baseline, evidence.sum_known(c.seconds for c in conversions))
    count = count_of(len(conversions), "conversion")
    return f"{message}; {baseline.name} has {count} of activations" + (f", {cost}" if cost is not None else "")


def _formats(tensors: Sequence[InputTensor]) -> str:
    return " or ".join(dict.fromkeys(CHANNELS_LAST_BY_RANK[len(tensor.shape)] for tensor in tensors))


def _suggestion(tensors: Sequence[InputTensor]) -> str:
    wanted = list(dict.fromkeys(CHANNELS_LAST_BY_RANK[len(tensor.shape)] for tensor in tensors))
    if len(wanted) > 1:
        return "convert each input and each parameter to the channels-last format of its rank, the parameters once"
    return f"model = model.to(memory_format=torch.{wanted[0]}); x = x.to(memory_format=torch.{wanted[0]})"


RULE = document_rule(CODE, NAME, check, __doc__)
