"""
Weights held in the dtype that autocast casts them to on every call.

In inference only: in training the float32 weights are what autocast is for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.subjects.cures.cure import ELEMENT_BYTES, KnownCure, element_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.subjects.cures.cure import Seen
    from layoutdoctor.workers.messages import Proposal

HOW = """\
for name in {modules}:
    model.get_submodule(name).to(torch.{dtype})  # autocast would cast it on every call"""

_CASTS = frozenset({"_to_copy", "to", "convert_element_type"})
_DTYPES = ("bfloat16", "float16")
_NARROW_BYTES = 2
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CAST_BY_AUTOCAST = (*_CONVOLUTIONS, nn.Linear)


def _casts(seen: Seen) -> Iterator[tuple[str, str, int]]:
    """Of every cast of a weight: the module it is in, the dtype it gives, and the elements."""
    for graph in seen.graphs:
        weights = {node.name: node for node in graph.nodes if node.op == "placeholder" and node.tensor == "weight"}
        for node in graph.nodes:
            source = weights.get(node.inputs[0]) if node.inputs else None
            if source is None or source.dtype != "float32" or base_name(node.target) not in _CASTS or node.backward:
                continue
            if node.dtype in _DTYPES:
                yield node.module or "", node.dtype, element_count(source.layout)


def _propose(seen: Seen) -> Proposal | None:
    if seen.mode == "training":
        return None
    modules = dict(seen.module.named_modules())
    found = [cast for cast in _casts(seen) if type(modules.get(cast[0])) in _CAST_BY_AUTOCAST]
    if not found:
        return None
    dtype = Counter(dtype for _, dtype, _ in found).most_common(1)[0][0]
    names = dict.fromkeys(name for name, given, _ in found if given == dtype)
    moved = sum((ELEMENT_BYTES + _NARROW_BYTES) * count for _, given, count in found if given == dtype)
    return AUTOCAST_DTYPE.proposal(names, moved, dtype=dtype)


AUTOCAST_DTYPE = KnownCure("autocast-dtype", _propose, HOW, "LD106")
