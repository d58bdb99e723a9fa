"""
Memory that one call frees goes back to the system, and the next call maps it anew.

What it finds:
    Page faults of what is recommended in every call, counted in a process that runs nothing else, where calls that keep
    their memory are at least 5 % shorter; else of the default. On a CPU; told once.

Why it costs:
    The system gives a page zeroed, one fault at a time: 0.25 to 1.2 us for 4 KiB, most in a virtual machine. glibc's
    allocator gives the end of its heap back as soon as a few megabytes are free there, which activations of
    convolutions are after every call.

Example:
    A ResNet18 at 128 x 128 under torch.compile's default: 4,700 faults a call in inference and 13,800 in training; with
    the memory kept, calls were 1.2 times as fast. A frozen MobileNetV2 mapped 1,528 pages anew in some processes and
    took 8 ms a call, none in others and took 6: what else lies on the heap decides.

What to do:
    It is not the layout. Lift the limits of glibc's allocator where the process starts, with
    ``MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0``, or preload jemalloc or tcmalloc. What the former brings is
    measured in the same processes, after their other turns; a process keeps as much memory as its largest call needed.

When it is fine:
    The process serves other work between calls, which needs the memory more. Always a note.

Source:
    mallopt(3), ``M_TRIM_THRESHOLD`` and ``M_MMAP_MAX``; PyTorch's performance tuning guide on jemalloc and tcmalloc;
    benchmarks/README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.choice import KEEPS_MEMORY, page_faults_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.units import format_ratio
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Comparison, Diagnosis, Finding, KeptMemory, Trial

_SETTINGS = " ".join(f"{name}={value}" for name, value in KEEPS_MEMORY.items())
_SUGGESTION = (
    f"it is not the layout: start the process with {_SETTINGS} (glibc), or with jemalloc preloaded, so that it keeps "
    "its memory"
)


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    comparison = diagnosis.comparison
    if comparison is None or not comparison.own_processes:  # one heap for all says nothing of the user's
        return
    advice = diagnosis.recommendation
    chosen = diagnosis.measured_trial(advice.configuration) if advice is not None and advice.configuration else None
    for trial in (chosen, evidence.main_trial(diagnosis)):
        faults = page_faults_of(trial)
        if trial is not None and faults:
            kept = None if advice is None else advice.kept_memory
            yield RULE.finding(
                trial.name,
                f"{count_of(round(faults), 'page fault')} in every call, for memory that the call before gave back to "
                "the system",
                f"{_SUGGESTION}; {_what_it_brings(trial, comparison, kept)}",
            )
            return


def _what_it_brings(trial: Trial, comparison: Comparison, kept: KeptMemory | None) -> str:
    if kept is None:
        return "not measured here"
    if trial.name == comparison.baseline:
        return f"it ran at {format_ratio(kept.baseline_ratio)} its speed so"
    if kept.speedup is None:  # what is known is of another configuration
        return "not measured here"
    both = kept.baseline_ratio * kept.speedup.median
    return f"it ran at {format_ratio(both)} the speed of {comparison.baseline} without that"


RULE = document_rule("LD308", "memory-mapped-anew", check, __doc__)
