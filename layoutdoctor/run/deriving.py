"""
Configurations that follow from those that ran: layout optimization in the backward too, the best with the cures that
may help, and under switches of libraries.

Which one is the best so far is told by a few calls in turns: what is made of it is timed in the rounds like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from layoutdoctor.diagnosis.configurations import BASELINE, base_name, choose_configurations
from layoutdoctor.examination.choice import eligible_names
from layoutdoctor.rules.graph_evidence import FORCED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.diagnosis.records import Configuration, Cure
    from layoutdoctor.isolation.messages import Proposal
    from layoutdoctor.run.trial import LiveTrial

    Quick = Callable[[Sequence[LiveTrial]], dict[str, float]]
    """Seconds of some trials by a few calls in turns; without those that failed meanwhile."""

MOST_CURES = 3
"""Each costs a compile, so that only those are tried that are about the most bytes."""

SWITCHED_COUNT = 2
"""How many of the best are tried under a library's switch."""

_SWITCH = "cudnn.benchmark"


def with_cures(base: Configuration, cures: Sequence[Cure]) -> Configuration:
    """A configuration with cures."""
    name = "+".join((base.name, *(cure.name for cure in cures)))
    return msgspec.structs.replace(base, name=name, cures=tuple(cures))


def with_switch(base: Configuration) -> Configuration:
    """A configuration for which cuDNN times its algorithms instead of guessing."""
    switches = {**base.library_switches, _SWITCH: True}
    return msgspec.structs.replace(base, name=f"{base.name}+cudnn-benchmark", library_switches=switches)


def in_both_directions(trials: Sequence[LiveTrial], quick: Quick) -> tuple[Configuration, ...]:
    """Forced layout optimization, where the default has it in the forward alone; none where that was done before."""
    if any(trial.name == FORCED for trial in trials):
        return ()
    is_wanted = any(trial.name == BASELINE and trial.memo.leaves_out_backward for trial in trials)
    return choose_configurations(FORCED) if is_wanted else ()


def single_cures(trials: Sequence[LiveTrial], quick: Quick) -> tuple[Configuration, ...]:
    """The best configuration with each cure that may help it; none where that was done before."""
    if any(trial.configuration.cures for trial in trials):
        return ()
    ready = _ready(trials)
    if not any(trial.memo.proposals for trial in trials) or not ready:
        return ()
    best = _fastest(ready, quick)
    if best is None:
        return ()
    return tuple(
        with_cures(base.configuration, (proposal.cure,))
        for base in (best, *_failed_like(best, trials))
        for proposal in _worth_most(base.memo.proposals)
    )[:MOST_CURES]


def cures_together(trials: Sequence[LiveTrial], quick: Quick) -> tuple[Configuration, ...]:
    """All cures that seem to help by themselves; none where fewer than two do, or that was done before."""
    if any(len(trial.configuration.cures) > 1 for trial in trials):
        return ()
    cured = [trial for trial in _ready(trials) if trial.configuration.cures]
    bases = {base_name(trial.configuration) for trial in cured}
    base = next((trial for trial in _ready(trials) if trial.name in bases), None)
    if base is None or len(cured) < 2:
        return ()
    seconds = quick([base, *cured])
    limit = seconds.get(base.name, 0.0)
    helping = [trial.configuration.cures[0] for trial in cured if seconds.get(trial.name, limit) < limit]
    return (with_cures(base.configuration, helping),) if len(helping) > 1 else ()


def under_switches(trials: Sequence[LiveTrial], quick: Quick, device: str) -> tuple[Configuration, ...]:
    """The best two under cuDNN's own timing, on a GPU; none where that is on already, or was done before."""
    ready = _ready(trials)
    if not device.startswith("cuda") or not torch.backends.cudnn.is_available() or torch.backends.cudnn.benchmark:
        return ()
    if torch.is_autocast_enabled("cuda"):  # the caller's, which holds for his own thread
        return ()
    if not ready or any(trial.configuration.library_switches for trial in trials):
        return ()
    seconds = quick(ready)
    best = sorted((trial for trial in ready if trial.name in seconds), key=lambda trial: seconds[trial.name])
    return tuple(with_switch(trial.configuration) for trial in best[:SWITCHED_COUNT])


def _failed_like(best: LiveTrial, trials: Sequence[LiveTrial]) -> list[LiveTrial]:
    """The first that failed for something that a cure mends, compiled as the best one is."""
    found = [trial for trial in trials if trial.record.failure is not None and trial.memo.proposals]
    like = [trial for trial in found if trial.configuration.backend == best.configuration.backend]
    same = [t for t in like if t.configuration.inductor_options == best.configuration.inductor_options]
    return (same or like or found)[:1]


def _worth_most(proposals: Iterable[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda proposal: -proposal.bytes_moved)[:MOST_CURES]


def _ready(trials: Sequence[LiveTrial]) -> list[LiveTrial]:
    """The trials that could be timed now, and recommended."""
    eligible = eligible_names([trial.record for trial in trials])
    return [trial for trial in trials if trial.step is not None and trial.name in eligible]


def _fastest(trials: Sequence[LiveTrial], quick: Quick) -> LiveTrial | None:
    seconds = quick(trials)
    known = [trial for trial in trials if trial.name in seconds]
    return min(known, key=lambda trial: seconds[trial.name], default=None)
