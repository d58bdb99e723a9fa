"""
The facts that sections ask for, each in one place, so that the first lines, the tables and the details cannot disagree.

Was one run recorded, or were configurations tried; what do round trips waste; what is the ratio to the baseline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions, sum_seconds
from layoutdoctor.configurations import BASELINE
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.words import DIRECTION_WORDS, ONEDNN_LOG, STATUS_WORDS, TOTALS_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Conversion, Diagnosis, RatioInterval, Trial

CLAUSE_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Waste:
    """
    What the redundant pairs of one trial cost in one iteration.

    Attributes:
        seconds: Time of all conversions in them, each counted once; None where not measured for every one.
        bytes_moved: Bytes the same conversions move; None where not known for every one.
        owners: Who inserted these conversions, sorted.
        exposed_seconds: The part of ``seconds`` in which nothing else ran on the device; None where not known for all.
    """

    pair_count: int
    seconds: float | None
    bytes_moved: int | None
    owners: tuple[str, ...]
    exposed_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """
    How a report calls what a recorded file holds.

    Attributes:
        file: The file: ``trace``, ``table`` or ``log``.
        kernel: One entry of its list: ``kernel`` or ``primitive``.
        time: The time of all of them together, as it stands behind a number: ``recorded GPU time``.
    """

    file: str
    kernel: str
    time: str


def is_recording(diagnosis: Diagnosis) -> bool:
    """Whether it rests on the file of one run, so that nothing was varied, timed or compared."""
    return diagnosis.subject.mode == "trace"


def recorded_trial(diagnosis: Diagnosis) -> Trial | None:
    """What was recorded of the one run; None where its file could not be examined."""
    return next((trial for trial in diagnosis.trials if trial.status == "ok"), None)


def is_on_cpu(diagnosis: Diagnosis) -> bool:
    """Whether the file says that it was recorded on a CPU."""
    return diagnosis.subject.device == "cpu"


def sources_of(diagnosis: Diagnosis) -> list[str]:
    """What kernels were read from, each once, in order."""
    return list(
        dict.fromkeys(source for trial in diagnosis.trials if trial.kernels for source in trial.kernels.sources)
    )


def terms_of(diagnosis: Diagnosis) -> Terms:
    """The words that fit the file a diagnosis was made from."""
    sources = sources_of(diagnosis)
    if ONEDNN_LOG in sources:
        return Terms("log", "primitive", "logged time")
    if TOTALS_TABLE in sources:
        return Terms("table", "kernel", "kernel time in the table")
    return Terms("trace", "kernel", "recorded kernel time" if is_on_cpu(diagnosis) else "recorded GPU time")


def find_ratio(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """The ratio of a configuration against the baseline; None where there is none."""
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    return next((ratio for ratio in ratios if ratio.name == name), None)


def baseline_phrase(name: str) -> str:
    """The baseline as a person calls it."""
    return "torch.compile's default" if name == BASELINE else clean_name(name)


def failure_clause(trial: Trial) -> str:
    """
    Why a trial has no result, in one clause.

    Args:
        trial: One whose status is neither ``ok`` nor ``same_as``.
    """
    word = STATUS_WORDS[trial.status]
    if trial.failure is None:
        return f"{word}: the reason was not recorded"
    stage = "" if trial.status == "skipped" else f" ({clean_name(trial.failure.kind)})"
    return f"{word}{stage}: {clean(trial.failure.message, CLAUSE_LENGTH)}"


def direction_words(conversion: Conversion) -> str:
    """Which way a conversion goes; a kernel's name alone may not say."""
    is_known = conversion.direction != "other" or conversion.source or conversion.target
    return DIRECTION_WORDS[conversion.direction] + ("" if is_known else ", or which way is not known")


def count_by_tensor(conversions: Iterable[Conversion]) -> dict[str, int]:
    """How many conversions there are of each kind of tensor, in a fixed order; each as often as it was launched."""
    counts: Counter[str] = Counter()
    for conversion in conversions:
        counts[conversion.tensor] += conversion.count
    return {kind: counts[kind] for kind in ("activation", "weight", "gradient", "unknown") if counts[kind]}


def listed_conversions(trial: Trial) -> dict[str, Conversion]:
    """Every conversion that a trial lists, by its id: those of the kernels, then those of the graphs."""
    found: dict[str, Conversion] = {}
    recorded = trial.kernels.conversions if trial.kernels is not None else ()
    for conversion in (*recorded, *(c for graph in trial.graphs for c in graph.conversions)):
        found.setdefault(conversion.id, conversion)
    return found


def waste_of(trial: Trial) -> Waste | None:
    """What the redundant pairs of a trial cost; None where it has none."""
    if not trial.redundant_pairs:
        return None
    known = listed_conversions(trial)
    ids = dict.fromkeys(id_ for pair in trial.redundant_pairs for id_ in (pair.first, pair.second))
    parts = [known[id_] for id_ in ids if id_ in known]
    complete = len(parts) == len(ids)
    moved = [part.bytes_moved for part in parts]
    exposed = [part.exposed_seconds for part in parts]
    return Waste(
        pair_count=len(trial.redundant_pairs),
        seconds=sum_seconds(parts) if complete else _sum_of_pairs(trial),
        bytes_moved=sum(m for m in moved if m is not None) if complete and None not in moved else None,
        owners=tuple(sorted({part.owner for part in parts})),
        exposed_seconds=sum(e for e in exposed if e is not None) if complete and None not in exposed else None,
    )


def _sum_of_pairs(trial: Trial) -> float | None:
    seconds = [pair.seconds for pair in trial.redundant_pairs]
    return None if None in seconds else sum(s for s in seconds if s is not None)


def exposed_seconds(trial: Trial) -> float | None:
    """
    The part of the conversions' time in which nothing else ran on the device; None where not known for all.

    What libraries and others left exposed never overlaps, as each ran alone, so the two are added.
    """
    counted = counted_conversions(trial)
    parts = [conversion.exposed_seconds for conversion in counted if conversion.owner != "library"]
    if trial.kernels is not None and any(conversion.owner == "library" for conversion in counted):
        parts.append(trial.kernels.exposed_conversion_seconds)
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
