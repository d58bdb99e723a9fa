"""
This version of torch (or cuDNN) has a known fault that this model meets.

What it finds:
    Entries of a table of faults whose versions, device and circumstances all fit: a Conv3d in half precision without
    cuDNN, upsampling between convolutions on a CPU, an output that lost its strides in a decomposition, as_strided with
    wrong values, a forced layout optimization that fails, training on MPS.

Why it costs:
    As the entry says: between a few percent and 30 times, or a wrong result.

Example:
    torch 2.9.0 with a bfloat16 Conv3d on CUDA: cuDNN is switched off for it, and a fallback takes several times the
    memory and time.

What to do:
    What the entry says; mostly another version of torch or cuDNN.

When it is fine:
    The entry was made from public reports: where this model's own measurement shows no loss, there is none. Nothing is
    said of a version, device or circumstance that was not recorded.

Source:
    Each entry names its own, in ``KNOWN_FAULTS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.known_faults import KNOWN_FAULTS, Fault, parse_cudnn, parse_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from layoutdoctor.diagnosis.records import Diagnosis, Finding


@dataclass(frozen=True)
class _Versions:
    """The versions a diagnosis was made with; None where not recorded or not read."""

    torch: Version | None
    cudnn: Version | None


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per entry that fits."""
    environment = diagnosis.environment
    versions = _Versions(parse_torch(environment.torch), parse_cudnn(environment.cudnn))
    for fault in KNOWN_FAULTS:
        if not _is_in_range(fault, versions) or fault.device not in (None, diagnosis.subject.device):
            continue
        seen = fault.look(diagnosis)
        if seen is None:
            continue
        cudnn = _cudnn_words(versions) if fault.is_of_cudnn else ""
        yield RULE.finding(
            seen.configuration,
            f"torch {environment.torch}{cudnn}: {fault.what}; seen here: {seen.words} ({fault.source})",
            fault.advice,
            severity=fault.severity,
            evidence=(fault.source,),
            at=seen,
        )


def _cudnn_words(versions: _Versions) -> str:
    cudnn = versions.cudnn
    return "" if cudnn is None else f" with cuDNN {cudnn.major}.{cudnn.minor}.{cudnn.micro}"


def _is_in_range(fault: Fault, versions: _Versions) -> bool:
    if versions.torch is None or not _is_between(versions.torch, fault.first_torch, fault.before_torch):
        return False
    if not fault.is_of_cudnn:
        return True
    return versions.cudnn is not None and _is_between(versions.cudnn, fault.first_cudnn, fault.before_cudnn)


def _is_between(version: Version, first: Version | None, before: Version | None) -> bool:
    return (first is None or version >= first) and (before is None or version < before)


RULE = document_rule("LD301", "known-bad-version", check, __doc__)
