"""Makes a policy from diagnoses of one model with several input shapes or numbers of threads."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.diagnosis.answer import FASTER, SLOWER
from layoutdoctor.diagnosis.policy import Case, Policy
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.advice.choice import eligible_names
from layoutdoctor.examination.advice.dispatch import lines_by_shape


def make_policy(diagnoses: Sequence[Diagnosis], weights: Sequence[float] | None = None) -> Policy:
    """
    Chooses the configuration for each kind of call, and the best single configuration.

    Args:
        diagnoses: Diagnoses of one model on one machine; each has other input shapes or another number of threads.
        weights: Relative frequency of each diagnosis's calls; None if all are equally frequent.

    Raises:
        UsageError: There is no diagnosis; a diagnosis has no weight from 1e-15 to 1e15; models, modes, devices,
            versions of torch or baselines differ; a baseline has no times; or two diagnoses have the same kind of call.
    """
    if not diagnoses:
        raise UsageError("cannot make a policy: no kind of call was measured; diagnose the model for at least one")
    weights = [1.0] * len(diagnoses) if weights is None else list(weights)
    if len(weights) != len(diagnoses) or not all(1e-15 <= one <= 1e15 for one in weights):
        raise UsageError(
            f"cannot make a policy of {len(diagnoses)} diagnoses with the weights {', '.join(map(str, weights))}: "
            "expected a weight from 1e-15 to 1e15 for each"
        )
    cases = [_case(diagnosis, weight) for diagnosis, weight in zip(diagnoses, weights, strict=True)]
    first = diagnoses[0]
    for diagnosis in diagnoses[1:]:
        for what, value in _identity(diagnosis).items():
            expected = _identity(first)[what]
            if value != expected:
                raise UsageError(
                    f"cannot make one policy of diagnoses that differ in {what}: got {expected!r} and {value!r}; make "
                    "one policy for each"
                )
    if len({(case.shapes, case.thread_count) for case in cases}) < len(cases):
        raise UsageError(
            "cannot make a policy of two diagnoses with the same input shapes and number of threads: leave one of "
            "them out"
        )
    baseline = first.baseline_name
    policy = Policy(
        model=first.subject.name,
        mode=first.subject.mode,
        torch=first.environment.torch,
        device=_device(first),
        device_name=first.environment.device_name,
        baseline=baseline,
        everywhere=baseline,
        configurations=(),
        cases=tuple(cases),
    )
    best = _best_single(policy)
    cases = [msgspec.structs.replace(case, use=best) if _gets_best(policy, case, best) else case for case in cases]
    used = {baseline, best, *(case.use for case in cases)}
    known = {trial.name: trial.configuration for diagnosis in diagnoses for trial in diagnosis.trials}
    configurations = tuple(configuration for name, configuration in known.items() if name in used)
    policy = msgspec.structs.replace(policy, everywhere=best, configurations=configurations, cases=tuple(cases))
    return msgspec.structs.replace(policy, how=_how(policy, diagnoses))


def _best_single(policy: Policy) -> str:
    """The configuration that is fastest over all cases and certainly faster than the baseline; else the baseline."""
    limit, best = policy.seconds(policy.baseline), policy.baseline
    assert limit is not None
    fastest = limit
    for name in sorted({ratio.name for ratio in policy.cases[0].ratios}):
        likely, at_most = policy.seconds(name), policy.seconds(name, at_most=True)
        if likely is not None and at_most is not None and at_most < limit and likely < fastest:
            fastest, best = likely, name
    return best


def _gets_best(policy: Policy, case: Case, best: str) -> bool:
    is_slower = any(ratio.name == best and ratio.verdict == SLOWER for ratio in case.ratios)
    return case.use == policy.baseline and not is_slower and policy.seconds_of(case, best) is not None


def _case(diagnosis: Diagnosis, weight: float) -> Case:
    subject, baseline = diagnosis.subject, diagnosis.baseline
    if baseline is None or baseline.seconds is None:
        raise UsageError(
            f"cannot make a policy of the diagnosis of {subject.name}: it has no times of its baseline; diagnose the "
            "model where it runs"
        )
    eligible = eligible_names(diagnosis.trials)
    return Case(
        shapes=tuple(tensor.shape for tensor in subject.inputs),
        thread_count=diagnosis.environment.thread_count if _device(diagnosis) == "cpu" else None,
        weight=weight,
        baseline_seconds=baseline.seconds,
        ratios=tuple(ratio for ratio in diagnosis.ratios.values() if ratio.name in eligible),
        use=diagnosis.recommended_name or baseline.name,
    )


def _device(diagnosis: Diagnosis) -> str:
    return (diagnosis.subject.device or "cpu").partition(":")[0]


def _identity(diagnosis: Diagnosis) -> dict[str, object]:
    """Values that must be equal in all diagnoses of a policy, by their names in an error message."""
    subject, environment = diagnosis.subject, diagnosis.environment
    return {
        "model": subject.model or subject.name,
        "number of parameters": subject.parameter_count,
        "mode": subject.mode,
        "device": environment.device_name or _device(diagnosis),
        "version of torch": environment.torch,
        "baseline": diagnosis.baseline_name,
    }


# ---------------------------------------------------------------------------------------------- lines to paste
def _how(policy: Policy, diagnoses: Sequence[Diagnosis]) -> str | None:
    """
    Lines to paste: a choice by shape, or the lines of one configuration if it serves all calls.

    In training, one model learns from all calls, so the best single configuration serves all calls.
    """
    if policy.mode == "training":
        return _lines_of(policy.everywhere, diagnoses)
    used = [diagnosis.trial(case.use).configuration for case, diagnosis in zip(policy.cases, diagnoses, strict=True)]
    freezes = all(one.freezes for one in used)
    switches = used[0].library_switches if all(one.library_switches == used[0].library_switches for one in used) else {}
    by_threads = len({case.thread_count for case in policy.cases}) > 1
    ways = {}
    for case, diagnosis in zip(policy.cases, diagnoses, strict=True):
        ranked = [diagnosis.trial(name).configuration for name in (case.use, *_others(policy, case, diagnosis))]
        fitting = (one for one in ranked if not one.ahead_of_time and (freezes or not one.freezes))
        way = next(fitting, None)
        if way is not None:
            kind = case.thread_count if by_threads else None, case.shapes
            name = way.name if way.library_switches == switches else f"{way.name}, without switches of libraries"
            ways[kind] = msgspec.structs.replace(way, name=name, library_switches=switches)
    chosen = {one.name: one for one in ways.values()}
    if not chosen.keys() - {policy.baseline}:
        return None
    if len(policy.cases) == 1 or (len(chosen) == 1 and all(one.backend == "eager" for one in chosen.values())):
        return _lines_of(next(iter(chosen)), diagnoses)
    has_formats = any(diagnosis.subject.parameter_formats for diagnosis in diagnoses)
    return lines_by_shape(ways, diagnoses[0].trial(policy.baseline).configuration, has_formats=has_formats)


def _others(policy: Policy, case: Case, diagnosis: Diagnosis) -> list[str]:
    """Further configurations for a call whose first choice cannot be used; the best without frozen weights is first."""
    free = diagnosis.without_freezing
    certain = sorted((ratio for ratio in case.ratios if ratio.verdict == FASTER), key=lambda ratio: -ratio.median)
    return [*([free.configuration] if free else []), *(ratio.name for ratio in certain), policy.baseline]


def _lines_of(name: str, diagnoses: Sequence[Diagnosis]) -> str | None:
    """The lines of a configuration that one of the diagnoses recommends; None if no diagnosis recommends it."""
    choices = (choice for one in diagnoses for choice in (one.recommendation, one.without_freezing))
    return next((choice.how for choice in choices if choice and choice.configuration == name and choice.how), None)
