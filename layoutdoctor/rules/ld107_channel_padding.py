"""
The channels of a tensor are padded for a convolution, on every call.

What it finds:
    Kernels of a library that copy a tensor into one with more channels, zeros in the added ones, or fold pixels into
    channels, because its fast kernels take no such number of channels. By the kernel's name, in the baseline or in a
    recorded trace.

Why it costs:
    The whole tensor is read and written anew, on each call, for a few channels: an image of 3 channels becomes one of
    4 or 8, so that more than half of what is written can be zeros. It looks like a layout conversion and is none: no
    memory format makes it go.

Example:
    The first convolution of an image network in channels_last and half precision: its input has 3 channels, and
    ``nhwcAddPaddingKernel`` runs in front of it in every step.

What to do:
    Pad once, where it is cheap: give the first layer an input and a weight with a multiple of 8 channels in half
    precision (of 4 in TF32), zeros in the added ones, where the batch is made. Or fold pixels into channels (space to
    depth), which changes the layer.

When it is fine:
    It costs less than 2 % of the kernel time (a note). The faster kernel behind it may be worth more than the padding
    costs: measure both.

Source:
    NVIDIA, "Convolutional Layers User's Guide": channel counts for Tensor Cores, and the library's automatic padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.kernel_names import kernel_entry
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Conversion, Diagnosis, Trial

CODE = "LD107"
NAME = "channel-padding"

_PADDING = "padding"
_CHANNELS_NAMED = 3


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding at most, about the baseline or the trace.

    Args:
        diagnosis: Any diagnosis.
    """
    trial = evidence.main_trial(diagnosis)
    padded = _paddings(trial) if trial is not None else []
    if trial is None or not padded:
        return
    seconds = evidence.sum_known(c.seconds for c in padded)
    found = recorded.conversion_places(padded)
    yield Finding(
        code=CODE,
        rule=NAME,
        severity=evidence.severity_of_cost(trial, seconds),
        configuration=trial.name,
        message=_message(trial, padded, found),
        suggestion="pad the channels once and leave the layout as it is: give that layer an input and a weight with a "
        "multiple of 8 channels in half precision (of 4 in TF32), zeros in the added ones; measure, since the library "
        "may find another kernel then",
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in padded),
        evidence=tuple(c.id for c in padded),
    )


def _paddings(trial: Trial) -> list[Conversion]:
    """They change no layout, so they are among the conversions of direction ``none``."""
    conversions = trial.kernels.conversions if trial.kernels is not None else ()
    return [conversion for conversion in conversions if _is_padding(conversion)]


def _is_padding(conversion: Conversion) -> bool:
    if conversion.kernel is None:
        return False
    known = kernel_entry(conversion.kernel)
    if known is None and conversion.count > 1:  # from a table of totals, which cuts names at its column's edge
        known = kernel_entry(conversion.kernel, is_cut=True)
    return known is not None and known.entry.role == _PADDING


def _message(trial: Trial, padded: Sequence[Conversion], found: Sequence[recorded.Place]) -> str:
    count = recorded.launch_count(padded)
    channels = list(dict.fromkeys(str(c.source.shape[1]) for c in padded if _has_channels(c) and c.source is not None))
    of_what = f" of tensors with {listing(channels, _CHANNELS_NAMED)}" if channels else ""
    steps = recorded.step_words(padded)
    parts = [
        f"{count_of(count, 'kernel')} {'pads or folds' if count == 1 else 'pad or fold'} the channels{of_what} "
        "for a convolution, which no memory format saves" + (f", {steps}" if steps is not None else ""),
        recorded.conversion_cost_words(trial, padded),
        recorded.dearest_words(found),
    ]
    return "; ".join(part for part in parts if part is not None)


def _has_channels(conversion: Conversion) -> bool:
    return conversion.source is not None and len(conversion.source.shape) > 1


RULE = document_rule(CODE, NAME, check, __doc__)
