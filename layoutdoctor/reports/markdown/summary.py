"""
The block at the end of the Markdown report that tools can read.

Faces the Markdown report; a pure function of the diagnosis.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions, sum_seconds
from layoutdoctor.reports.sections.rows import find_ratio
from layoutdoctor.reports.sections.wording import clean_name
from layoutdoctor.rules.evidence import main_trial

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis, Finding, Trial

MARKER = "<!-- layoutdoctor:v1 -->"
"""The line before the block; the number is that of the block's form."""

SUMMARY_VERSION = 1


def summary_lines(diagnosis: Diagnosis, most: int) -> str:
    """
    The marker and a folded block of JSON, the same for the same diagnosis.

    The JSON is one object under ``layoutdoctor``, its keys sorted: ``schema_version`` (of this block), ``version`` (of
    layoutdoctor), ``torch``, ``device``, ``mode``, ``baseline`` and ``fastest`` (names of configurations, null where
    nothing was compared), ``speedup`` of the fastest against the baseline (low, median, high; null where the fastest is
    the baseline, or was not compared), ``verdicts`` by configuration (``baseline``; ``faster``, ``slower``, ``no
    measurable difference``; ``same as NAME``; ``not compared``; else the trial's status), ``configuration_count``,
    ``findings``, most severe first (code, severity, configuration, module, seconds), ``finding_count``,
    ``redundant_pair_count`` over all configurations, and ``conversion_seconds`` of the baseline per iteration, in a
    trace of all that was recorded. Of very many verdicts and findings only the first are listed; the counts are of all.
    Names are printable and at most 100 characters long. A tool takes the last line that is the marker, and reads the
    fenced block after it.

    Args:
        diagnosis: Any diagnosis.
        most: Findings and verdicts to list.
    """
    text = json.dumps({"layoutdoctor": _summary(diagnosis, most)}, sort_keys=True, indent=1, allow_nan=False)
    # Neither the fence nor any HTML around it can be ended by a name; JSON reads the escapes as the characters.
    for character in "`<>&~":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"{MARKER}\n<details><summary>Machine-readable summary</summary>\n\n```json\n{text}\n```\n\n</details>"


def _summary(diagnosis: Diagnosis, most: int) -> dict[str, object]:
    main, fastest = main_trial(diagnosis), diagnosis.fastest
    return {
        "schema_version": SUMMARY_VERSION,
        "version": clean_name(diagnosis.layoutdoctor_version),
        "torch": _name(diagnosis.environment.torch),
        "device": _name(diagnosis.subject.target or diagnosis.subject.device),
        "mode": diagnosis.subject.mode,
        "baseline": _name(diagnosis.comparison.baseline) if diagnosis.comparison else None,
        "fastest": clean_name(fastest.name) if fastest is not None else None,
        "speedup": _speedup(diagnosis),
        "verdicts": {clean_name(trial.name): _verdict(diagnosis, trial) for trial in diagnosis.trials[:most]},
        "configuration_count": len(diagnosis.trials),
        "finding_count": len(diagnosis.findings),
        "findings": [_finding(finding) for finding in diagnosis.findings[:most]],
        "redundant_pair_count": len(diagnosis.redundant_pairs),
        "conversion_seconds": _conversion_seconds(main),
    }


def _name(text: str | None) -> str | None:
    return None if text is None else clean_name(text)


def _speedup(diagnosis: Diagnosis) -> list[float] | None:
    fastest = diagnosis.fastest
    if fastest is None or diagnosis.comparison is None or fastest.name == diagnosis.comparison.baseline:
        return None
    advised = diagnosis.recommendation.speedup if diagnosis.recommendation is not None else None
    interval = advised or find_ratio(diagnosis, fastest.name)
    ends = () if interval is None else (interval.low, interval.median, interval.high)
    return list(ends) if ends and all(map(math.isfinite, ends)) else None


def _verdict(diagnosis: Diagnosis, trial: Trial) -> str:
    if trial.same_as is not None:
        return f"same as {clean_name(trial.same_as)}"
    if trial.status != "ok":
        return trial.status
    if diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline:
        return "baseline"
    ratio = find_ratio(diagnosis, trial.name)
    return ratio.verdict if ratio is not None else "not compared"


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "code": clean_name(finding.code),
        "severity": finding.severity,
        "configuration": _name(finding.configuration),
        "module": _name(finding.module),
        "seconds": _finite(finding.seconds),
    }


def _conversion_seconds(trial: Trial | None) -> float | None:
    """Time of the conversions that run on their own; None where kernels, or one of these times, were not recorded."""
    if trial is None or trial.kernels is None:
        return None
    return _finite(sum_seconds(counted_conversions(trial)))


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
