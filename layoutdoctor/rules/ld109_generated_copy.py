"""
Kernels that Inductor generated look like copies between layouts (experimental).

What it finds:
    In a recorded trace: launches of Triton kernels that walk a two-dimensional tile, or whose recorded operands lie in
    different stride orders, and that seem to compute nothing. The finding says which of these it rests on. It is
    experimental: the name of a Triton kernel proves nothing (``triton_poi_fused_convolution_3`` can be a copy in one
    graph and the addition of a bias in another), and a tile of two dimensions is what the compiler chooses for mixed
    strides, whatever the loop computes besides.

Why it costs:
    A copy reads and writes the whole tensor and computes nothing. Where Inductor makes convolutions channels-last, it
    adds them at every border to what stays contiguous.

Example:
    A compiled U-Net whose trace shows ``triton_poi_fused_convolution_12`` with ``YBLOCK=32`` in front of each
    convolution: the graph is contiguous there, and every convolution input is written anew.

What to do:
    Diagnose the model itself: there the loops of each generated kernel are read, and the conversions have their
    cause. Or look at the code (``TORCH_LOGS=output_code``), and record with layout optimization off and on.

When it is fine:
    The entry and the exit of a channels-last graph need one each, for all convolutions between. It is always a note.

Source:
    ``torch/_inductor/runtime/triton_heuristics.py``, torch 2.13: a kernel gets a YBLOCK where it is tiled in two
    dimensions; pytorch/pytorch PR #99773 adds the copies in front of convolutions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import conversions_of, launch_count
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import distinct, joined, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Trial

_KERNELS_NAMED = 3
_CAUSES_NAMED = 2


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for all such kernels of a trace."""
    for trial in evidence.trace_trials(diagnosis):
        copies = [conversion for conversion in conversions_of(trial) if conversion.owner == "compiler"]
        if copies:
            yield RULE.finding(
                trial.name,
                _message(trial, copies),
                "a trace cannot tell what a generated kernel does: diagnose the model itself (python -m "
                "layoutdoctor model.py), which reads its loops; or look at its code with TORCH_LOGS=output_code",
                conversions=copies,
            )


def _message(trial: Trial, copies: Sequence[Conversion]) -> str:
    count = launch_count(copies)
    names = evidence.named_counts(((c.kernel, c.count) for c in copies), _KERNELS_NAMED)
    causes = distinct(c.cause for c in copies)
    one, several = "launch of a generated kernel looks like a copy", "launches of generated kernels look like copies"
    parts = (
        joined((f"experimental: {count} {one if count == 1 else several} between layouts", names), ": "),
        f"evidence: {listing(causes, _CAUSES_NAMED)}" if causes else None,
        evidence.conversion_cost_words(trial, copies),
        evidence.dearest_place_words(copies),
    )
    return joined(parts)


RULE = document_rule("LD109", "generated-copy", check, __doc__)
