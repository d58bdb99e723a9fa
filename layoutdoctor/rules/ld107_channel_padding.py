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

from layoutdoctor.examination.costs import launch_count, sum_known
from layoutdoctor.examination.kernels.names import kernel_entry
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, distinct, joined, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Trial

_PADDING = "padding"
_CHANNELS_NAMED = 3


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, about the baseline or the trace."""
    trial = evidence.main_trial(diagnosis)
    padded = _paddings(trial) if trial is not None else []
    if trial is not None and padded:
        yield RULE.finding(
            trial.name,
            _message(trial, padded),
            "pad the channels once and leave the layout as it is: give that layer an input and a weight with a "
            "multiple of 8 channels in half precision (of 4 in TF32), zeros in the added ones; measure, since the "
            "library may find another kernel then",
            severity=evidence.severity_of_cost(trial, sum_known(c.seconds for c in padded)),
            conversions=padded,
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


def _message(trial: Trial, padded: Sequence[Conversion]) -> str:
    count = launch_count(padded)
    shapes = [c.source.shape for c in padded if c.source is not None]
    channels = distinct(str(shape[1]) for shape in shapes if len(shape) > 1)
    of_what = f" of tensors with {listing(channels, _CHANNELS_NAMED)}" if channels else ""
    what = (
        f"{count_of(count, 'kernel')} {'pads or folds' if count == 1 else 'pad or fold'} the channels{of_what} "
        "for a convolution, which no memory format saves"
    )
    costs = (evidence.conversion_cost_words(trial, padded), evidence.dearest_place_words(padded))
    return joined((joined((what, evidence.step_words(padded)), ", "), *costs))


RULE = document_rule("LD107", "channel-padding", check, __doc__)
