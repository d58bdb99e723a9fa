"""
A Conv3d whose kernel is 1 deep, run as a Conv2d on every frame.

The module keeps its weight and its name, and computes in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from layoutdoctor.subjects.cures.cure import READ_AND_WRITTEN, KnownCure, element_count

if TYPE_CHECKING:
    from layoutdoctor.subjects.cures.cure import Seen
    from layoutdoctor.workers.messages import Proposal

HOW = """\
class FlatConv3d(torch.nn.Conv3d):
    def forward(self, x):
        if x.dim() != 5:
            return super().forward(x)
        padding = self.padding if isinstance(self.padding, str) else self.padding[1:]
        frames = torch.nn.functional.conv2d(
            x.transpose(1, 2).flatten(0, 1), self.weight.squeeze(2), self.bias,
            self.stride[1:], padding, self.dilation[1:], self.groups,
        )
        return frames.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
for name in {modules}:
    model.get_submodule(name).__class__ = FlatConv3d"""


def _is_flat(module: nn.Module) -> bool:
    """Whether frames do not mix; a pointwise one is a matrix product either way, and a subclass may do more."""
    if type(module) is not nn.Conv3d or module.padding_mode != "zeros":
        return False
    pads_depth = not isinstance(module.padding, str) and module.padding[0] != 0
    is_flat = module.kernel_size[0] == 1 and module.stride[0] == 1 and not pads_depth
    return is_flat and module.kernel_size != (1, 1, 1)


def _propose(seen: Seen) -> Proposal | None:
    flat = {name: module for name, module in seen.module.named_modules() if _is_flat(module)}
    moved = sum(
        element_count(node.layout)
        for graph in seen.graphs
        for node in graph.nodes
        if (node.module or "") in flat and "convolution" in node.target
    )
    return FLAT_CONV3D.proposal(flat, READ_AND_WRITTEN * moved) if flat else None


FLAT_CONV3D = KnownCure("flat-conv3d", _propose, HOW, "LD503")
