"""
A dense input for a batch norm that is given a strided one, though the model is contiguous.

The layout of its input decides which kernel a batch norm runs; an input made by a matrix product and a transpose is
channels-last, or in no memory format at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from layoutdoctor.examination.graphs.layout_agnostic import strided_norms
from layoutdoctor.subjects.copies import layout_of
from layoutdoctor.subjects.cures.cure import READ_AND_WRITTEN, KnownCure, element_count

if TYPE_CHECKING:
    from layoutdoctor.subjects.cures.cure import Seen
    from layoutdoctor.workers.messages import Proposal

HOW = """\
def dense(module, inputs):
    return (inputs[0].contiguous(), *inputs[1:])
for name in {modules}:
    model.get_submodule(name).register_forward_pre_hook(dense)"""

_BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def _propose(seen: Seen) -> Proposal | None:
    if any("contiguous_format" not in layout_of(tensor).memory_formats for tensor in seen.module.parameters()):
        return None  # its formats are mixed on purpose, or channels-last
    modules = dict(seen.module.named_modules())
    found = {
        strided.norm.module or "": strided.layout
        for graph in seen.graphs
        for strided in (*strided_norms(graph), *strided_norms(graph, taken_apart=True))
        if isinstance(modules.get(strided.norm.module or ""), _BATCH_NORMS)
    }
    moved = READ_AND_WRITTEN * sum(map(element_count, found.values()))
    return DENSE_BATCH_NORM.proposal(found, moved) if found else None


DENSE_BATCH_NORM = KnownCure("dense-batch-norm-input", _propose, HOW, "LD302")
