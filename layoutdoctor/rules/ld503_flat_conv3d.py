"""LD503: 3-D convolutions whose kernel is flat."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Convolution, Diagnosis, Finding
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, listing, shape_words

FOLDED = (
    "y = torch.nn.functional.conv2d(x[:, :, ::conv.stride[0]].transpose(1, 2).flatten(0, 1), conv.weight.squeeze(2), "
    "conv.bias, conv.stride[1:], conv.padding[1:], conv.dilation[1:], conv.groups)"
    ".unflatten(0, (x.shape[0], -1)).transpose(1, 2)"
)
"""A line to replace ``conv(x)``, if the module ``conv`` pads with zeros and ``x`` is ``[N, C, T, H, W]``."""


def flat_convolutions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, as the configurations have the same convolutions."""
    for trial, convolutions in evidence.first_showing(evidence.own_trials(diagnosis), evidence.forward_convolutions):
        flat = [convolution for convolution in convolutions if _is_flat(convolution)]
        names = [f"{c.module or c.node} {shape_words((c.weight_shape or ())[2:])}" for c in flat]
        if flat:
            yield LD503.finding(
                trial.name,
                f"Conv3d with a kernel of 1 in depth: {len(flat)} of {count_of(len(convolutions), 'convolution')} "
                f"({listing(names)}); a Conv2d on each frame computes the same",
                f"fold the depth into the batch: {FOLDED}",
                evidence=[convolution.node for convolution in flat],
                at=flat[0],
            )


def _is_flat(convolution: Convolution) -> bool:
    """Whether a Conv3d computes each depth slice alone. Excludes 1x1x1 kernels and kernels that equal the stride."""
    kernel = (convolution.weight_shape or ())[2:]
    if convolution.is_transposed or not convolution.stride or not convolution.padding:
        return False
    is_flat = convolution.rank == 3 and kernel[:1] == (1,) and kernel not in ((1, 1, 1), convolution.stride)
    return is_flat and convolution.padding[0] == 0


LD503 = Rule("LD503", "flat-conv3d", flat_convolutions)
