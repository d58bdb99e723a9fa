"""
The same kernel in two configurations that differ in memory format only: which takes how much longer in which.

Faces the rules; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.records import Diagnosis, FxNode, Kernel, Trial

# A profiled iteration whose kernels take this many times what an iteration takes in the rounds was disturbed.
_DISTURBED_FACTOR = 1.5

FORMAT_PAIRS = (("inductor", "inductor-channels-last"), ("eager", "eager-channels-last"))


def trial_pairs(diagnosis: Diagnosis, backend: str | None = None) -> Iterator[tuple[Trial, Trial]]:
    """
    Measured trials that differ in the formats of model and input only, the caller's format first.

    Args:
        diagnosis: Any diagnosis.
        backend: ``eager`` or ``inductor``; None for both.

    Yields:
        Pairs with kernels of their own, both from an iteration that nothing else disturbed, as far as the rounds tell.
    """
    for names in FORMAT_PAIRS:
        first, second = (diagnosis.measured_trial(name) for name in names)
        if first is None or second is None or first is second:
            continue
        if backend in (None, first.configuration.backend) and _is_sound(first) and _is_sound(second):
            yield first, second


def _is_sound(trial: Trial) -> bool:
    if trial.kernels is None or trial.kernels.seconds is None:
        return False
    return trial.measurement is None or (trial.kernels.seconds <= _DISTURBED_FACTOR * trial.measurement.median_seconds)


def node_of(trial: Trial, kernel: Kernel) -> FxNode | None:
    """
    The graph node that ran a kernel, where that was recorded and is one node.

    Args:
        trial: The trial whose kernel it is.
        kernel: One of its kernel list.
    """
    found = [
        node
        for graph in trial.graphs
        if kernel.graph in (None, graph.name)
        for node in graph.nodes
        if node.name == kernel.node
    ]
    return found[0] if len(found) == 1 else None
