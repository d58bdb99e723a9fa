"""Inputs of modules that lie in channels-last get the strides that the format gives dimensions of size 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.examination.graphs.dispatch import read_as_contiguous
from layoutdoctor.subjects.copies import CHANNELS_LAST
from layoutdoctor.subjects.cures.cure import READ_AND_WRITTEN, KnownCure, element_count

if TYPE_CHECKING:
    from torch import nn

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.isolation.messages import Proposal
    from layoutdoctor.subjects.cures.cure import Seen

HOW = """\
def exact(x):
    is_meant = isinstance(x, torch.Tensor) and x.dim() == {rank} and x.is_contiguous(memory_format={format})
    return x.to(memory_format={format}) if is_meant else x
for name in {modules}:
    model.get_submodule(name).register_forward_pre_hook(lambda module, inputs: tuple(map(exact, inputs)))"""


def _exact(value: Any) -> Any:
    wanted = CHANNELS_LAST.get(value.dim()) if isinstance(value, torch.Tensor) else None
    if wanted is None or not value.is_contiguous(memory_format=wanted):
        return value
    return value.to(memory_format=wanted)  # contiguous() would return it as it is


def _given(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    del module
    return tuple(map(_exact, inputs))


def _propose(seen: Seen) -> Proposal | None:
    leaves = {name for name, module in seen.module.named_modules() if name and not list(module.children())}
    found: dict[str, Layout] = {}
    for graph in seen.graphs:
        for node, source in read_as_contiguous(graph):
            if node.module is not None and node.module in leaves and source.layout is not None:
                found[node.module] = source.layout
    ranks = {len(layout.shape) for layout in found.values()}
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    moved = READ_AND_WRITTEN * sum(map(element_count, found.values()))
    return EXACT_STRIDES.proposal(found, moved, format=str(CHANNELS_LAST[rank]), rank=str(rank))


EXACT_STRIDES = KnownCure(
    "exact-strides", _propose, lambda part, _: part.register_forward_pre_hook(_given), HOW, "LD506"
)
