"""
What became of the speed of each configuration between two diagnoses.

Times of two runs cannot be judged: the same model, diagnosed twice in a row on a shared machine that nobody used, took
up to 3.3 times as long. The ratio of two configurations that ran side by side moved by 3 % at most in 99 of 100 pairs
of diagnoses, and by 5 % in the worst. So ratios to the baseline are compared, and judged from 5 % on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.comparison import EnvironmentDifference, TimeChange
from layoutdoctor.diagnosis.records import Ratio
from layoutdoctor.examination.ratios import judge

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis

BETWEEN_RUNS = 0.05
"""Two diagnoses of one thing may differ by this in their ratios; quiet ones hardly ever do."""

WITH_RESULT = ("ok", "same_as")
_DEVICE = ("device_name", "onednn_isa", "cpu_count", "thread_count")
_FIELDS = (
    "device_name",
    "torch",
    "cuda",
    "driver",
    "cudnn",
    "triton",
    "onednn",
    "onednn_isa",
    "compiler",
    "python",
    "platform",
    "thread_count",
    "cpu_count",
)


def environment_changes(old: Diagnosis, new: Diagnosis) -> tuple[EnvironmentDifference, ...]:
    """Devices, versions and settings that are not the same; the device first, then versions, then settings by name."""
    values = [("device", old.subject.device, new.subject.device)]
    values += [(name, getattr(old.environment, name), getattr(new.environment, name)) for name in _FIELDS]
    before, after = old.environment.settings, new.environment.settings
    values += [(f"setting {name}", before.get(name), after.get(name)) for name in sorted({*before, *after})]
    return tuple(
        EnvironmentDifference(name=name, old=None if once is None else str(once), new=None if now is None else str(now))
        for name, once, now in values
        if once != now
    )


def has_another_machine(old: Diagnosis, new: Diagnosis) -> bool:
    """Whether two diagnoses are known to come from different devices, processors or thread counts."""
    pairs = [(getattr(old.environment, name), getattr(new.environment, name)) for name in _DEVICE]
    return any(_differs(once, now) for once, now in ((old.subject.device, new.subject.device), *pairs))


def _differs(once: object, now: object) -> bool:
    return once is not None and now is not None and once != now


def time_change(name: str, old: Diagnosis, new: Diagnosis, not_comparable: str | None) -> TimeChange | None:
    """
    What became of the speed of a configuration; None if it was not measured in both.

    Args:
        not_comparable: Why the two diagnoses are not about the same work; None if they are.
    """
    trials = [diagnosis.measured_trial(name) for diagnosis in (old, new)]
    if any(trial is None or trial.measurement is None for trial in trials):
        return None
    ratios = ratio_in(old, name), ratio_in(new, name)
    change = TimeChange(old_ratio=ratios[0], new_ratio=ratios[1])
    if _is_baseline(old, name) and _is_baseline(new, name):
        return change
    problem = not_comparable or _problem_of(old, new, name)
    if problem is not None or ratios[0] is None or ratios[1] is None:
        problem = problem or "it has no ratio to the baseline in one of both"
        return msgspec.structs.replace(change, not_judged=problem)
    return msgspec.structs.replace(change, change=_over(ratios[1], ratios[0]))


def ratio_in(diagnosis: Diagnosis, name: str) -> Ratio | None:
    """The ratio of a configuration to the baseline, also if it was measured as another one; None for the baseline."""
    measured = diagnosis.measured_trial(name)
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    return next((ratio for ratio in ratios if measured is not None and ratio.name == measured.name), None)


def _is_baseline(diagnosis: Diagnosis, name: str) -> bool:
    return diagnosis.baseline is not None and diagnosis.measured_trial(name) is diagnosis.baseline


def _over(new: Ratio, old: Ratio) -> Ratio:
    low, high = new.low / old.high, new.high / old.low
    verdict = judge(low, high, resolution=BETWEEN_RUNS, equality=BETWEEN_RUNS)
    return Ratio(name=new.name, low=low, median=new.median / old.median, high=high, verdict=verdict)


def _problem_of(old: Diagnosis, new: Diagnosis, name: str) -> str | None:
    """Why the speed of a configuration cannot be judged."""
    if old.comparison is None or new.comparison is None or old.comparison.baseline != new.comparison.baseline:
        return "the two have no common baseline"
    named = [trial for trial in (old.find_trial(name), new.find_trial(name)) if trial is not None]
    if len({msgspec.json.encode(trial.configuration) for trial in named}) > 1:
        return "the configuration has other options"
    for age, diagnosis in (("old", old), ("new", new)):
        for trial in (diagnosis.measured_trial(name), diagnosis.baseline):
            if trial is not None and trial.equivalence is not None and trial.equivalence.status == "different":
                return f"the outputs of {trial.name} are wrong in the {age} one"
    return None
