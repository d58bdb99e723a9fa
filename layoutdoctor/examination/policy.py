"""A policy from diagnoses of one model: for several input shapes, devices or numbers of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.answer import SLOWER
from layoutdoctor.diagnosis.policy import Case, Policy
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.choice import eligible_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.diagnosis import Diagnosis


def make_policy(diagnoses: Sequence[Diagnosis], weights: Sequence[float] | None = None) -> Policy:
    """
    The configuration for each kind of call, and the best single configuration.

    Args:
        diagnoses: Diagnoses of one model; each has other input shapes, another device or another number of threads.
        weights: Relative frequency of each diagnosis's calls; None if all are equally frequent.

    Raises:
        UsageError: There is no diagnosis, or not one weight from 1e-15 to 1e15 for each; the models, modes or baselines
            differ; a baseline has no times; or two diagnoses have the same kind of call.
    """
    weights = [1.0] * len(diagnoses) if weights is None else list(weights)
    if not diagnoses or len(weights) != len(diagnoses) or not all(1e-15 <= one <= 1e15 for one in weights):
        raise UsageError(
            f"cannot make a policy of {len(diagnoses)} diagnoses with {len(weights)} weights: expected at least one "
            "diagnosis, and a weight from 1e-15 to 1e15 for each"
        )
    cases = [_case(diagnosis, weight) for diagnosis, weight in zip(diagnoses, weights, strict=True)]
    first = diagnoses[0]
    of = list(dict.fromkeys(map(_identity, diagnoses)))
    if len(of) > 1:
        raise UsageError(f"cannot make a policy of {of[1]} and {of[0]}: expected one model and mode")
    kinds = {(case.shapes, case.device, case.device_name, case.thread_count) for case in cases}
    if len(kinds) < len(cases):
        raise UsageError(
            "cannot make a policy of two diagnoses with the same input shapes, device and number of threads: "
            "leave one of them out"
        )
    assert first.comparison is not None
    baseline = first.comparison.baseline
    policy = Policy(
        model=first.subject.name,
        mode=first.subject.mode,
        torch=first.environment.torch,
        baseline=baseline,
        everywhere=baseline,
        configurations=(),
        cases=tuple(cases),
    )
    best = _best_single(policy)
    cases = [msgspec.structs.replace(case, use=_use(policy, case, best)) for case in cases]
    used = {best, *(case.use for case in cases)}
    known = {trial.name: trial.configuration for diagnosis in diagnoses for trial in diagnosis.trials}
    configurations = tuple(configuration for name, configuration in known.items() if name in used)
    return msgspec.structs.replace(policy, everywhere=best, configurations=configurations, cases=tuple(cases))


def _best_single(policy: Policy) -> str:
    """The fastest, over all cases, of the configurations certainly faster than the baseline; else the baseline."""
    limit, best = policy.seconds(policy.baseline), policy.baseline
    assert limit is not None
    fastest = limit
    for name in sorted({ratio.name for ratio in policy.cases[0].ratios}):
        likely, at_most = policy.seconds(name), policy.seconds(name, at_most=True)
        if likely is not None and at_most is not None and at_most < limit and likely < fastest:
            fastest, best = likely, name
    return best


def _use(policy: Policy, case: Case, best: str) -> str:
    is_slower = any(ratio.name == best and ratio.verdict == SLOWER for ratio in case.ratios)
    is_known = policy.seconds_of(case, best) is not None
    return best if case.use == policy.baseline and not is_slower and is_known else case.use


def _case(diagnosis: Diagnosis, weight: float) -> Case:
    comparison, subject, baseline = diagnosis.comparison, diagnosis.subject, diagnosis.baseline
    if comparison is None or baseline is None or baseline.measurement is None:
        raise UsageError(
            f"cannot make a policy of the diagnosis of {subject.name}: it has no times of its baseline; diagnose the "
            "model where it runs"
        )
    eligible, advice = eligible_names(diagnosis.trials), diagnosis.recommendation
    chosen = advice.configuration if advice is not None else None
    return Case(
        shapes=tuple(tensor.shape for tensor in subject.inputs),
        device=(subject.device or "cpu").partition(":")[0],
        device_name=diagnosis.environment.device_name,
        thread_count=diagnosis.environment.thread_count if (subject.device or "cpu") == "cpu" else None,
        weight=weight,
        baseline_seconds=baseline.measurement.median_seconds,
        ratios=tuple(ratio for ratio in comparison.ratios if ratio.name in eligible),
        use=comparison.baseline if chosen is None else chosen,
    )


def _identity(diagnosis: Diagnosis) -> str:
    subject = diagnosis.subject
    assert diagnosis.comparison is not None
    return f"{subject.model or subject.name} in {subject.mode} against {diagnosis.comparison.baseline}"
