"""
What a rule may suggest: nothing that was measured as no faster or seen to fail, nothing against what is recommended.

A rule with a configuration as its suggestion asks here first, and how severe it is to have another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import FASTER, SLOWER
from layoutdoctor.examination.costs import HIDDEN_GAIN, may_hide_gain
from layoutdoctor.rules import evidence
from layoutdoctor.words import be, distinct, joined, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.diagnosis.records import Account, Configuration, Diagnosis, RatioInterval, Severity, Trial

OFF = ("inductor-layout-opt-off",)
# What an error stands for: so much is to be gained by a cure that was measured and verified.
_ERROR_GAIN = 0.05
_FAILED = ("failed", "crashed", "timed_out")


def channels_last_ways(trial: Trial) -> tuple[str, ...]:
    """The configurations that give the model and its input channels_last, for a trial's backend."""
    return ("eager-channels-last",) if trial.configuration.backend == "eager" else evidence.CHANNELS_LAST_CONFIGURATIONS


def frozen_ways(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The configurations with frozen weights that were asked for."""
    return tuple(trial.name for trial in diagnosis.trials if trial.configuration.freezes)


def advised(diagnosis: Diagnosis, trial: Trial, ways: Sequence[str], words: str) -> str:
    """
    A suggestion for a trial, unless what was measured speaks against it: then that.

    Args:
        ways: The configurations that would follow it.
        words: What to do.
    """
    against = other_cure(diagnosis, trial, lambda cure: cure.name in ways)
    if against is not None:
        return against
    return words if is_worth_trying(diagnosis, trial, ways) else refusal(diagnosis, trial, ways)


def is_worth_trying(diagnosis: Diagnosis, trial: Trial, ways: Iterable[str]) -> bool:
    """Whether of some configurations none was tried, or one is faster than a trial, or may be behind the noise."""
    known = [_is_open(diagnosis, trial, name) for name in ways]
    tried = [one for one in known if one is not None]
    return not tried or any(tried)


def _is_open(diagnosis: Diagnosis, trial: Trial, name: str) -> bool | None:
    """None where it was not tried, or its speed was not measured."""
    tried, measured = diagnosis.find_trial(name), diagnosis.measured_trial(name)
    if tried is None or measured is None or tried is trial:
        return None
    is_no_way = tried.status in _FAILED or evidence.has_different_outputs(diagnosis, name)
    if is_no_way or measured.name == trial.name or evidence.is_refuted(diagnosis, name):
        return False
    ratio, own = evidence.ratio_of(diagnosis, name), evidence.ratio_of(diagnosis, trial.name)
    if evidence.is_baseline(diagnosis, trial.name):
        return None if ratio is None else ratio.verdict == FASTER or may_hide_gain(ratio)
    if evidence.is_baseline(diagnosis, name):
        return None if own is None else own.verdict == SLOWER or own.low < 1 - HIDDEN_GAIN
    return None if ratio is None or own is None else ratio.median > own.median


def refusal(diagnosis: Diagnosis, trial: Trial, ways: Sequence[str]) -> str:
    """What this diagnosis knows of configurations that are not worth trying again."""
    failed = [
        name
        for name in ways
        if (tried := diagnosis.find_trial(name)) is not None
        and (tried.status in _FAILED or evidence.has_different_outputs(diagnosis, name))
    ]
    refuted = [name for name in ways if evidence.is_refuted(diagnosis, name)]
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else ""
    left = [name for name in ways if name not in (*failed, *refuted) and diagnosis.find_trial(name) is not None]
    same = [name for name in left if diagnosis.measured_trial(name) is trial]
    ratios = [
        evidence.ratio_of(diagnosis, trial.name if evidence.is_baseline(diagnosis, name) else name)
        for name in left
        if name not in same
    ]
    told = distinct(evidence.speed_words(ratio, baseline) for ratio in ratios if ratio is not None)
    facts = (
        listing(told) if told else None,
        f"{listing(same)} {'runs' if len(same) == 1 else 'run'} the same code as {trial.name}" if same else None,
        f"{listing(refuted)} {be(len(refuted))} not faster in fresh processes" if refuted else None,
        f"{listing(failed)} failed, or computed something else" if failed else None,
    )
    return joined(("no configuration that was tried helps measurably", joined(facts)), ": ")


def other_cure(diagnosis: Diagnosis, trial: Trial, is_this: Callable[[Configuration], bool]) -> str | None:
    """
    Where a rule's own cure would go against what the diagnosis recommends: that, in words.

    Args:
        trial: What the finding is about; only of the baseline something is recommended.
        is_this: Whether a configuration follows the rule's cure.

    Returns:
        None where it does not.
    """
    advice = diagnosis.recommendation
    if advice is None or advice.configuration is None or not evidence.is_baseline(diagnosis, trial.name):
        return None
    names = {other.name for other in diagnosis.trials if advice.configuration in (other.name, other.same_as)}
    chosen = [other.configuration for other in diagnosis.trials if other.name in names]
    if not chosen or evidence.is_baseline(diagnosis, advice.configuration) or any(map(is_this, chosen)):
        return None
    return f"use {advice.configuration}" + (
        f": {evidence.speedup_words(advice.speedup)}" if advice.speedup is not None else ""
    )


def use_instead(diagnosis: Diagnosis, trial: Trial, other: Trial, what: str) -> str:
    """
    The suggestion to use another trial, behind what is recommended where that is a third one.

    Args:
        what: What the other one does better, such as ``has no round trip``.
    """
    measured = evidence.alternative_words(diagnosis, trial, other)
    recommended = other_cure(diagnosis, trial, lambda cure: cure.name == other.name)
    if recommended is not None:
        return f"{recommended}; {other.name} {what}, {measured}"
    return f"use {other.name}: it {what}; {measured}"


def use_or_recommended(diagnosis: Diagnosis, account: Account) -> str:
    """The suggestion to use the faster one of an account, or what is recommended where that is a third one."""
    slower = diagnosis.find_trial(account.slower)
    recommended = None if slower is None else other_cure(diagnosis, slower, lambda cure: cure.name == account.faster)
    return recommended or f"use {account.faster}"


def is_cured(diagnosis: Diagnosis, is_this: Callable[[Trial], bool]) -> bool:
    """Whether the cure that a rule means was measured and verified, and gains enough for an error."""
    cure, advice = evidence.verified_cure(diagnosis), diagnosis.recommendation
    if cure is None or advice is None or not is_this(cure):
        return False
    gain = advice.speedup or evidence.ratio_of(diagnosis, cure.name)
    return gain is not None and gain.median >= 1 + _ERROR_GAIN


def severity_by_cure(
    diagnosis: Diagnosis, gain: RatioInterval | None, is_this: Callable[[Configuration], bool]
) -> Severity:
    """
    ``error`` where the cure that a rule means was measured and verified, else by what another configuration gains.

    Args:
        gain: What that gains over the baseline; None where none does.
        is_this: Whether a configuration is the cure.
    """
    if is_cured(diagnosis, lambda cure: is_this(cure.configuration)):
        return "error"
    return evidence.severity_of_gain(gain)
