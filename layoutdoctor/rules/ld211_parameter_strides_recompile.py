"""
The model is compiled again because the strides of a tensor changed, not its shape.

What it finds:
    Dynamo's reasons for compiling again that name a stride mismatch of a parameter (or another tensor), with no size
    mismatch of the same one.

Why it costs:
    Each compile takes seconds to minutes, and after a few of them dynamo gives up and runs eager.

Example:
    A momentum encoder whose weights are replaced, ``pk.data = pq * 0.1 + pk * 0.9``, by values in the strides of
    another model in channels_last. For a 1x1 convolution the two layouts are even the same bytes.

What to do:
    Update in place, ``pk.lerp_(pq, 0.1)`` or ``copy_``, which keeps the strides; or convert both models to one memory
    format before the first call.

When it is fine:
    It happens once, at the start. Reasons that name a size are another matter: dynamic shapes.

Source:
    pytorch/pytorch issue #126241 (moco, detectron2_fcos).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import be, count_of, distinct, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

# Dynamo's text, torch 2.7 to 2.13 (torch/csrc/dynamo/guards.cpp).
_MISMATCH = re.compile(
    r"tensor '(?P<tensor>.+?)' (?P<what>stride|size) mismatch at index (?P<index>\d+)\. "
    r"expected (?P<expected>[^,\s]+), actual (?P<actual>[^,\s]+?)(?:[.\s]|$)"
)
_HELD_BY_MODULE = re.compile(r"_parameters\[|_buffers\[|\bself\b|\.(?:weight|bias)$")
_CONTAINER = re.compile(r"\.?_(?:modules|parameters|buffers)\['([^']+)'\]")


@dataclass(frozen=True)
class _Mismatch:
    """One of dynamo's reasons."""

    tensor: str
    what: str
    index: str
    expected: str
    actual: str


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration that was compiled again for it."""
    for trial, strided in evidence.first_showing(evidence.own_trials(diagnosis), _strided):
        yield _finding(trial, strided)


def _strided(trial: Trial) -> list[_Mismatch]:
    matches = (_MISMATCH.search(line) for line in trial.recompile_reasons)
    reasons = [_Mismatch(**match.groupdict()) for match in matches if match is not None]
    resized = {mismatch.tensor for mismatch in reasons if mismatch.what == "size"}
    return [r for r in reasons if r.what == "stride" and r.tensor not in resized]


def _finding(trial: Trial, strided: Sequence[_Mismatch]) -> Finding:
    are_parameters = all(_HELD_BY_MODULE.search(mismatch.tensor) for mismatch in strided)
    owner = "parameter" if are_parameters else "tensor"
    named = distinct(
        f"{_plain_name(m.tensor)} (stride of dimension {m.index}: expected {m.expected}, actual {m.actual})"
        for m in strided
    )
    total = count_of(len(trial.recompile_reasons), "reason")
    return RULE.finding(
        trial.name,
        f"compiled again because of {owner} strides, though no shape changed: {len(strided)} of {total} "
        f"{be(len(strided))} a stride mismatch, of {listing(named)}",
        (
            "update it in place (lerp_, copy_), which keeps its strides, or convert both models to one memory "
            "format before the first call (pytorch #126241)"
            if are_parameters
            else "give the tensor in one layout on every call (pytorch #126241)"
        ),
        severity="warning",
        evidence=[mismatch.tensor for mismatch in strided],
    )


def _plain_name(tensor: str) -> str:
    """``L['self']._modules['a']._parameters['weight']`` as ``a.weight``."""
    name = _CONTAINER.sub(r".\1", tensor)
    for prefix in ("L['self'].", "L['self']", "self.", "fn."):
        name = name.removeprefix(prefix)
    return name.lstrip(".") or tensor


RULE = document_rule("LD211", "parameter-strides-recompile", check, __doc__)
