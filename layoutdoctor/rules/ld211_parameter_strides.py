"""LD211: a model that is compiled again because strides changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding, Trial
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, distinct, listing

# Dynamo's text, torch 2.7 to 2.13 (torch/csrc/dynamo/guards.cpp).
_MISMATCH = re.compile(
    r"tensor '(?P<tensor>.+?)' (?P<what>stride|size) mismatch at index (?P<index>\d+)\. "
    r"expected (?P<expected>[^,\s]+), actual (?P<actual>[^,\s]+?)(?:[.\s]|$)"
)
_HELD_BY_MODULE = re.compile(r"_parameters\[|_buffers\[|\bself\b|\.(?:weight|bias)$")
_CONTAINER = re.compile(r"\.?_(?:modules|parameters|buffers)\['([^']+)'\]")


def stride_recompiles(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for the first configuration that was compiled again because of strides."""
    for trial, strided in evidence.first_showing(evidence.own_trials(diagnosis), _strided):
        are_parameters = all(_HELD_BY_MODULE.search(mismatch["tensor"]) for mismatch in strided)
        owner = "parameter" if are_parameters else "tensor"
        named = distinct(
            f"{_plain_name(m['tensor'])} (dimension {m['index']}: {m['expected']} expected, {m['actual']} found)"
            for m in strided
        )
        yield LD211.finding(
            trial.name,
            f"recompilation because of {owner} strides, though the shape did not change: {len(strided)} of "
            f"{count_of(len(trial.recompile_reasons), 'reason')}, {listing(named, 2)}",
            (
                "update the parameter in place (lerp_, copy_), which keeps its strides, or assign only values with "
                "these strides (pytorch #126241)"
                if are_parameters
                else "give the tensor in one layout on every call (pytorch #126241)"
            ),
            severity="warning",
            evidence=[mismatch["tensor"] for mismatch in strided],
        )


def _strided(trial: Trial) -> list[re.Match[str]]:
    """Returns Dynamo's recompile reasons about strides of tensors whose sizes did not change."""
    reasons = [match for line in trial.recompile_reasons if (match := _MISMATCH.search(line))]
    resized = {mismatch["tensor"] for mismatch in reasons if mismatch["what"] == "size"}
    return [r for r in reasons if r["what"] == "stride" and r["tensor"] not in resized]


def _plain_name(tensor: str) -> str:
    """Shortens a name such as ``L['self']._modules['a']._parameters['weight']`` to ``a.weight``."""
    name = _CONTAINER.sub(r".\1", tensor)
    for prefix in ("L['self'].", "L['self']", "self.", "fn."):
        name = name.removeprefix(prefix)
    return name.lstrip(".") or tensor


LD211 = Rule("LD211", "parameter-strides-recompile", stride_recompiles)
