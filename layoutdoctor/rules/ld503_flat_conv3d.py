"""
A Conv3d with a kernel of 1 in depth computes what a Conv2d on each frame would.

What it finds:
    Three-dimensional convolutions whose kernel, stride and padding leave the depth alone (kernel 1, stride 1, padding
    0 there) and that are no pointwise ones; in the baseline's compiled graph, else in the first one with such a list.

Why it costs:
    Libraries have more and better kernels for 2-D convolutions, most of all in the backward; and Inductor's layout
    optimization covers 2-D only. The report below measured a backward 1.8 times slower than Conv2d's on as many
    elements; the forwards were nearly equal.

Example:
    ``nn.Conv3d(c, c, kernel_size=(1, 3, 3), padding=(0, 1, 1))`` on video, to convolve each frame by itself.

What to do:
    Fold the depth into the batch, with the same weight (``conv.weight.squeeze(2)``), bias, stride, padding and
    dilation: the finding has the line. In channels_last_3d the fold is a view, and what the Conv2d sees is
    channels_last. A diagnosis of the default configurations tries it and tells what it brings: ``NAME+flat-conv3d``.

When it is fine:
    A contiguous input: there the fold is a copy, which can cost what the Conv2d gains; measure. A pointwise 1x1x1
    kernel is left out, since it is one matrix product in either form and the fold could only add copies.

Source:
    A forum report with a script (Conv3d with kernel (1, 3, 3) against Conv2d with kernel (3, 3)): backward 0.103 s and
    0.057 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Convolution, Diagnosis, Finding, Trial

_CONVOLUTIONS_NAMED = 6
FOLDED = (
    "y = torch.nn.functional.conv2d(x.transpose(1, 2).flatten(0, 1), conv.weight.squeeze(2), conv.bias, "
    "conv.stride[1:], conv.padding[1:], conv.dilation[1:], conv.groups)"
    ".unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)"
)
"""The same of a module ``conv`` with padding by zeros and an input ``x`` ``[N, C, T, H, W]``."""

_POINTWISE = (1, 1, 1)


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: the configurations have the same convolutions."""
    for trial, convolutions in evidence.first_showing(evidence.own_trials(diagnosis), _forward_convolutions):
        flat = [convolution for convolution in convolutions if _is_flat(convolution)]
        if flat:
            yield _finding(trial, flat, len(convolutions))


def _forward_convolutions(trial: Trial) -> list[Convolution]:
    cards = evidence.cards_of(trial, with_backward=False)
    return [convolution for card in cards for convolution in card.convolutions if not convolution.is_backward]


def _is_flat(convolution: Convolution) -> bool:
    """Whether depth slices do not mix; False where the numbers were not recorded."""
    kernel = _kernel(convolution)
    if convolution.rank != 3 or len(kernel) != 3 or convolution.is_transposed:
        return False
    if not convolution.stride or not convolution.padding:
        return False
    return kernel[0] == 1 and kernel != _POINTWISE and convolution.stride[0] == 1 and convolution.padding[0] == 0


def _kernel(convolution: Convolution) -> tuple[int | str, ...]:
    return (convolution.weight_shape or ())[2:]


def _finding(trial: Trial, flat: list[Convolution], count: int) -> Finding:
    names = [f"{c.module or c.node} ({shape_words(_kernel(c))})" for c in flat]
    verb = "is a" if len(flat) == 1 else "are"
    return RULE.finding(
        trial.name,
        f"{len(flat)} of {count_of(count, 'convolution')} {verb} Conv3d with a kernel of 1 in depth, "
        f"which a Conv2d on each frame computes as well: {listing(names, _CONVOLUTIONS_NAMED)}",
        f"fold the depth into the batch: {FOLDED}; in one report Conv3d's backward took 1.8 times Conv2d's",
        evidence=[convolution.node for convolution in flat],
        at=flat[0],
    )


RULE = document_rule("LD503", "flat-conv3d", check, __doc__)
