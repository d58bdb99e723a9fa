"""
A call takes longer in a process whose allocator gives freed memory back to the system.

What it finds:
    A call of the default, or of the recommended configuration, that takes at least 5 % longer in fresh processes with
    glibc's default allocator than in the timed processes, which keep their memory. On a CPU; one finding.

Why it costs:
    The system gives a page zeroed, one page fault at a time: 0.25 to 1.2 us for 4 KiB, most in a virtual machine. glibc
    gives the end of its heap back as soon as a few megabytes are free there, which activations of convolutions are
    after every call.

Example:
    A ResNet18 at 128 x 128 under torch.compile's default: 4,700 page faults a call in inference and 13,800 in training;
    with the memory kept, calls were 1.2 times as fast.

What to do:
    Lift the limits of glibc's allocator in the environment that the process starts with,
    ``MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0``, or preload jemalloc or tcmalloc. The process then keeps as
    much memory as its largest call needed.

When it is fine:
    The process serves other work between calls, which needs the memory more.

Source:
    mallopt(3), ``M_TRIM_THRESHOLD`` and ``M_MMAP_MAX``; PyTorch's performance tuning guide on jemalloc and tcmalloc;
    benchmarks/README.md.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from layoutdoctor.examination.choice import KEEPS_MEMORY
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import shown
from layoutdoctor.units import format_significant
from layoutdoctor.words import listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

_LEAST_FACTOR = 1.05
_WARNING_FACTOR = 1.10
_SETTINGS = " ".join(f"{name}={value}" for name, value in KEEPS_MEMORY.items())


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    advice = diagnosis.recommendation
    chosen = diagnosis.measured_trial(advice.configuration) if advice is not None and advice.configuration else None
    trials = {trial.name: trial for trial in (diagnosis.baseline, chosen) if trial is not None}
    factors = {name: factor for name, trial in trials.items() if (factor := _factor(trial)) is not None}
    name = max(factors, key=lambda name: factors[name], default=None)
    if name is None or factors[name] < _LEAST_FACTOR:
        return
    told = [f"{shown(name)} takes {format_significant(factor)} times as long" for name, factor in factors.items()]
    measured = trials[name].measurement
    yield RULE.finding(
        name,
        f"{listing(told)} in a fresh process whose allocator gives memory back to the system (glibc's default)",
        f"start the process with {_SETTINGS} in its environment",
        severity="warning" if factors[name] >= _WARNING_FACTOR else "note",
        seconds=None if measured is None else (factors[name] - 1) * measured.median_seconds,
    )


def _factor(trial: Trial) -> float | None:
    measured = trial.measurement
    if measured is None or not measured.unkept_seconds:
        return None
    return statistics.median(measured.unkept_seconds) / measured.median_seconds


RULE = document_rule("LD308", "memory-given-back", check, __doc__)
