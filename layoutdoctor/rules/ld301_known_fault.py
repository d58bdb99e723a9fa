"""LD301: this version of torch or cuDNN has a known fault that the model meets."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.known_faults import KNOWN_FAULTS


def faults_of_versions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per fault whose versions, device and circumstances all fit."""
    environment = diagnosis.environment
    torch, cudnn = parse_torch(environment.torch), parse_cudnn(environment.cudnn)
    for fault, look in KNOWN_FAULTS.items():
        is_of_cudnn = fault.first_cudnn is not None
        fits = fault.device in (None, diagnosis.subject.device)
        fits = fits and _is_between(torch, fault.first_torch, fault.before_torch)
        fits = fits and (not is_of_cudnn or _is_between(cudnn, fault.first_cudnn, fault.before_cudnn))
        seen = next(look(diagnosis), None) if fits else None
        if seen is None:
            continue
        beside = f" with cuDNN {cudnn}" if is_of_cudnn else ""
        yield LD301.finding(
            seen.configuration,
            f"torch {environment.torch}{beside}: {fault.what} ({fault.source.partition(',')[0]}); here: {seen.words}",
            fault.advice,
            severity=fault.severity,
            evidence=(fault.source,),
            at=seen.at,
        )


LD301 = Rule("LD301", "known-bad-version", faults_of_versions)


def _is_between(version: Version | None, first: str | None, before: str | None) -> bool:
    if version is None or (first is not None and version < Version(first)):
        return False
    return before is None or version < Version(before)


def parse_torch(text: str | None) -> Version | None:
    """Parses ``"2.9.1+cu128"`` or ``"2.13.0.dev20260514"``, without the part after ``+``; None if it is no version."""
    try:
        version = Version((text or "").partition("+")[0])
    except InvalidVersion:
        return None
    return version if len(version.release) > 1 else None


def parse_cudnn(text: str | None) -> Version | None:
    """Parses a version of cuDNN, with dots or as torch gives it: ``"91002"`` is 9.10.2, ``"8907"`` is 8.9.7."""
    if text is None or not text.strip().isdecimal():
        return parse_torch(text)
    number = int(text)
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return Version(f"{major}.{rest // 100}.{rest % 100}")
