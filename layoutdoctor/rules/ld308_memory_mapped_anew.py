"""
Memory that one call frees goes back to the system, and the next call maps it anew.

What it finds:
    Page faults of what is recommended in every call, counted in a process that runs nothing else, where at half a
    microsecond each they take at least 5 % of the call; else of the default. On a CPU; told once.

Why it costs:
    The system gives a page zeroed, one fault at a time: 0.25 to 1 us for 4 KiB, more in a virtual machine. glibc's
    allocator gives the end of its heap back as soon as a few megabytes are free there, which activations of
    convolutions are after every call.

Example:
    A ResNet18 at 128 x 128 under torch.compile's default: 4,700 faults a call in inference and 13,800 in training; with
    the memory kept, calls were 1.2 times as fast. A frozen MobileNetV2 mapped 1,528 pages anew in some processes and
    took 8 ms a call, none in others and took 6: what else lies on the heap decides.

What to do:
    It is not the layout. Lift the limits of glibc's allocator where the process starts, with
    ``MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0``, or preload jemalloc or tcmalloc. What this brings is not
    measured here; the process keeps as much memory as its largest call needed.

When it is fine:
    The process serves other work between calls, which needs the memory more. Always a note.

Source:
    mallopt(3), ``M_TRIM_THRESHOLD`` and ``M_MMAP_MAX``; PyTorch's performance tuning guide on jemalloc and tcmalloc;
    benchmarks/README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.units import format_share
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

_FAULT_SECONDS = 0.5e-6
_LEAST_SHARE = 0.05
_SUGGESTION = (
    "it is not the layout: start the process with MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0 (glibc), or "
    "with jemalloc preloaded, so that it keeps its memory; not measured here"
)


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    comparison = diagnosis.comparison
    if comparison is None or not comparison.own_processes:  # one heap for all says nothing of the user's
        return
    advice = diagnosis.recommendation
    chosen = diagnosis.measured_trial(advice.configuration) if advice is not None and advice.configuration else None
    for trial in (chosen, evidence.main_trial(diagnosis)):
        faults, share = _faults_of(trial)
        if trial is not None and share >= _LEAST_SHARE:
            yield RULE.finding(
                trial.name,
                f"{count_of(round(faults), 'page fault')} in every call, for memory that the call before gave back to "
                f"the system: about {format_share(share)} of the call",
                _SUGGESTION,
            )
            return


def _faults_of(trial: Trial | None) -> tuple[float, float]:
    """How many there are in a call, and about which share of it they take; 0 where not counted."""
    measured = trial.measurement if trial is not None else None
    if measured is None or measured.page_faults_per_call is None or not measured.median_seconds:
        return 0.0, 0.0
    faults = measured.page_faults_per_call
    return faults, faults * _FAULT_SECONDS / measured.median_seconds


RULE = document_rule("LD308", "memory-mapped-anew", check, __doc__)
