"""
Compares the speed of a diagnosis's configurations, and decides which of them a finding may suggest.

A configuration is advisable if it is certainly faster, its outputs are not known to be wrong, and no configuration that
demands as little of the user is clearly faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from layoutdoctor.diagnosis import Account, Configuration, Diagnosis, Finding, Ratio, Severity, Trial
from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE
from layoutdoctor.diagnosis.configurations import name_without_cures
from layoutdoctor.examination.advice.choice import EQUALITY, WIDEST, demands, eligible_names, judge, ratio_of
from layoutdoctor.examination.gaps import is_recorded_like
from layoutdoctor.rules.evidence import CHANNELS_LAST_CONFIGURATIONS, NEGLIGIBLE_SHARE
from layoutdoctor.units import format_ratio
from layoutdoctor.words import count_of, distinct, gain_words, joined, listing, phrase, shown, speed_words


class Times:
    """
    The ratios of a diagnosis.

    Attributes:
        baseline: Name of the configuration that ratios refer to; empty if nothing was compared.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        self.baseline = diagnosis.compared_with or ""
        self._ratios = diagnosis.ratios
        free = diagnosis.without_freezing
        named = (diagnosis.recommended_name, None if free is None else free.configuration)
        trials = (diagnosis.measured_trial(name) for name in named)
        self._recommended = {trial.name: -number for number, trial in enumerate(trials) if trial is not None}

    def _measured(self, name: str) -> str:
        trial = self.diagnosis.measured_trial(name)
        return name if trial is None else trial.name

    def is_baseline(self, name: str) -> bool:
        """Whether a configuration is the baseline, or runs the same code as the baseline."""
        return bool(self.baseline) and self._measured(name) == self._measured(self.baseline)

    def ratio(self, name: str) -> Ratio | None:
        """Returns the ratio of a configuration to the baseline; 1 for the baseline itself, None if not known."""
        if self.is_baseline(name):
            return Ratio(name=self._measured(name), low=1.0, median=1.0, high=1.0, verdict=EQUAL)
        return self._ratios.get(self._measured(name))

    def over(self, name: str, than: str) -> Ratio | None:
        """
        Returns how many times faster one configuration is than another.

        None if either has no ratio, or if the interval is too wide to say anything.
        """
        ratio, other = self.ratio(name), self.ratio(than)
        if ratio is None or other is None or other.low <= 0:
            return None
        low, median, high = ratio.low / other.high, ratio.median / other.median, ratio.high / other.low
        if high > WIDEST * low:
            return None
        return Ratio(name=ratio.name, low=low, median=median, high=high, verdict=judge(low, high))

    def computes_right(self, name: str) -> bool:
        """Whether the outputs of a configuration are not known to be wrong."""
        trial = self.diagnosis.measured_trial(name)
        return trial is None or not trial.is_wrong

    def is_advisable(self, name: str, than: str) -> bool:
        """Whether ``name`` is advisable instead of ``than``: certainly faster, not wrong, and no other is better."""
        gain = self.over(name, than)
        is_faster = gain is not None and gain.verdict == FASTER and self.computes_right(name)
        return is_faster and self.better_than(name) is None

    def better_than(self, name: str) -> Ratio | None:
        """Returns the best ratio of the configurations over 3 % faster than ``name`` that demand no more; else None."""
        ratio, most = self.ratio(name), self._demands(name)
        better = [
            other
            for own in {*eligible_names(self.diagnosis.trials), self.baseline}
            if ratio is not None
            and (other := self.ratio(own)) is not None
            and self.computes_right(own)
            and other.median > (1 + EQUALITY) * ratio.median
            and self._demands(own) <= most
        ]
        return max(better, key=self._preference, default=None)

    def _demands(self, name: str) -> tuple[bool, bool, int]:
        trial = self.diagnosis.measured_trial(name)
        return (False, False, 0) if trial is None else demands(trial.configuration)

    def fastest(self, names: Iterable[str]) -> Ratio | None:
        """Returns the best ratio of the ``names`` that are advisable instead of the baseline; None if no name is."""
        advisable = distinct(self.ratio(name) for name in names if self.is_advisable(name, self.baseline))
        return max(advisable, key=self._preference, default=None)

    def preference(self, name: str) -> tuple[float, float]:
        """A sort key: the recommended configuration is highest, then the best without freezing; then speed decides."""
        ratio = self.ratio(name)
        return (-math.inf, 0.0) if ratio is None else self._preference(ratio)

    def _preference(self, ratio: Ratio) -> tuple[float, float]:
        return self._recommended.get(ratio.name, -math.inf), ratio.median

    def clean_trials(self, trial: Trial, is_clean: Callable[[Trial], bool]) -> list[Trial]:
        """
        Returns the other trials that do not have a problem of ``trial``. They ran and are not wrong, but may be slower.

        Args:
            is_clean: Function that says whether a trial is free of the problem. It is called only for trials that were
                recorded from the same sources as ``trial``.
        """
        return [
            other
            for other in self.diagnosis.trials
            if other.status == "ok"
            and other.name != trial.name
            and is_recorded_like(other, trial)
            and self.computes_right(other.name)
            and is_clean(other)
        ]

    def clean_alternative(self, trial: Trial, is_clean: Callable[[Trial], bool]) -> Trial | None:
        """Returns the best trial that does not have a problem of ``trial`` and is advisable instead; else None."""
        clean = [other for other in self.clean_trials(trial, is_clean) if self.is_advisable(other.name, trial.name)]
        return max(clean, key=lambda other: self.preference(other.name), default=None)

    def is_worth_it(self, trial: Trial, is_clean: Callable[[Trial], bool]) -> bool:
        """Whether a problem of ``trial`` pays off: trials without the problem were timed, and none looks faster."""
        known = distinct(self.over(other.name, trial.name) for other in self.clean_trials(trial, is_clean))
        may_be = (gain.verdict == FASTER or (gain.verdict == INCONCLUSIVE and gain.median > 1) for gain in known)
        return bool(known) and not any(may_be)


def alternative_words(times: Times, trial: Trial, other: Trial) -> str:
    """Describes two known ratios, the first without its name: ``"1.30x faster (1.20 to 1.40); eager 0.90x"``."""
    better, own = (None if times.is_baseline(one.name) else times.ratio(one.name) for one in (other, trial))
    if better is None:
        return phrase("{}", own, speed_words)
    return gain_words(better) + phrase("; {}", own, lambda ratio: f"{shown(ratio.name)} {format_ratio(ratio.median)}")


OFF = ("inductor-layout-opt-off",)
SWITCH_OFF = 'switch it off for this model: torch.compile(model, options={"layout_optimization": False})'
ERROR_GAIN = 0.05
_FAILED = ("failed", "crashed", "timed_out")


def channels_last_ways(trial: Trial) -> tuple[str, ...]:
    """Names the configurations of a trial's backend whose model and input are in channels_last."""
    return ("eager-channels-last",) if trial.configuration.backend == "eager" else CHANNELS_LAST_CONFIGURATIONS


def advised(times: Times, trial: Trial, ways: Sequence[str], words: str) -> str:
    """
    Returns a suggestion; another recommendation or measurements against the suggestion are returned instead.

    Args:
        ways: Names of the configurations that follow the suggestion.
        words: The suggestion.
    """
    return other_cure(times, trial.name, lambda cure: cure.name in ways) or unless_refuted(times, trial, ways, words)


def unless_refuted(times: Times, trial: Trial, ways: Sequence[str], words: str) -> str:
    """Returns the suggestion ``words``, or the measurements against it; ignores the recommendation."""
    return words if is_worth_trying(times, trial, ways) else refusal(times, trial, ways)


def is_worth_trying(times: Times, trial: Trial, ways: Iterable[str]) -> bool:
    """Whether some configurations are worth trying: one is advisable, or nothing is known about any of them."""
    tried = [answer for name in ways if (answer := _may_help(times, trial, name)) is not None]
    return not tried or any(tried)


def _may_help(times: Times, trial: Trial, name: str) -> bool | None:
    """Whether a configuration is advisable; None if nothing is known: not tried, not timed, or ``trial`` itself."""
    tried, measured = times.diagnosis.find_trial(name), times.diagnosis.measured_trial(name)
    if tried is None or measured is None or tried is trial:
        return None
    if tried.status in _FAILED or measured is trial or not times.computes_right(name):
        return False
    return None if times.over(name, trial.name) is None else times.is_advisable(name, trial.name)


def refusal(times: Times, trial: Trial, ways: Sequence[str]) -> str:
    """Says why configurations are not advisable: no faster, not the best, same code, failed or wrong. Else empty."""
    failed, wrong, slow, beaten, same = [], [], [], [], []
    tried = {name: found for name in ways if (found := times.diagnosis.find_trial(name)) is not None}
    for name, one in tried.items():
        if one.status in _FAILED:
            failed.append(shown(name))
        elif not times.computes_right(name):
            wrong.append(shown(name))
        elif times.diagnosis.measured_trial(name) is trial:
            same += [shown(name)] if one is not trial else []
        elif (gain := times.over(name, trial.name)) is not None:
            better = times.better_than(name)
            if gain.verdict != FASTER:
                slow.append(gain)
            elif better is not None:
                beaten.append(f"{shown(better.name)} is faster than {shown(name)}")
    against = "" if times.is_baseline(trial.name) else f"against {shown(trial.name)}"
    facts = (
        phrase("{}", slow, lambda ratios: _best_of(ratios, against)),
        listing(distinct(beaten)),
        phrase("the same code: {}", same, listing),
        phrase("{} failed", failed, listing),
        phrase("{} gave wrong outputs", wrong, listing),
    )
    return joined(facts)


def _best_of(slow: Sequence[Ratio], against: str) -> str:
    """Describes the best of some configurations that are not certainly faster, and counts the others."""
    best = max(slow, key=lambda ratio: ratio.median)
    others = len({ratio.name for ratio in slow}) - 1
    start = joined((None if best.verdict == INCONCLUSIVE else "no faster", against), " ")
    rest = f"{count_of(others, 'other')} no better" if others else None
    return joined((joined((start, speed_words(best)), ": "), rest))


def other_cure(times: Times, name: str, is_this: Callable[[Configuration], bool]) -> str:
    """
    Describes the recommended configuration if it is advisable and is not a rule's own cure; else empty.

    Args:
        name: The configuration of the finding. Only the baseline can be replaced by a recommendation.
        is_this: Function that says whether a configuration follows the rule's cure.
    """
    advice = times.diagnosis.recommendation
    if advice is None or advice.configuration is None or not times.is_baseline(name):
        return ""
    chosen = [t.configuration for t in times.diagnosis.trials if advice.configuration in (t.name, t.same_as)]
    if not chosen or any(map(is_this, chosen)) or not times.is_advisable(advice.configuration, name):
        return ""
    return f"use {shown(advice.configuration)}{phrase(': {}', times.ratio(advice.configuration), gain_words)}"


def use_instead(times: Times, trial: Trial, other: Trial, what: str) -> str:
    """
    Returns the suggestion to use another trial; if a third trial is recommended, that trial is named first.

    Args:
        what: Advantage of the other trial, such as ``has no round trip``.
    """
    measured = alternative_words(times, trial, other)
    recommended = other_cure(times, trial.name, lambda cure: cure.name == other.name)
    if recommended:
        return f"{recommended}; {shown(other.name)} {what}, {measured}"
    return f"use {shown(other.name)}: it {what}; {measured}"


def use_faster(diagnosis: Diagnosis, account: Account) -> str:
    """Suggests an account's faster trial; empty if that trial is not advisable, or if another trial is recommended."""
    times = Times(diagnosis)
    is_other = bool(other_cure(times, account.slower, lambda cure: cure.name == account.faster))
    if is_other or not times.is_advisable(account.faster, account.slower):
        return ""
    return f"use {shown(account.faster)}"


def verified_cure(diagnosis: Diagnosis) -> Trial | None:
    """Returns the recommended trial if further starts confirmed it and it is at least 5 % faster; else None."""
    advice = diagnosis.recommendation
    if advice is None or not advice.verified or advice.speedup is None:
        return None
    is_enough = advice.speedup.verdict == FASTER and advice.speedup.median >= 1 + ERROR_GAIN
    return diagnosis.measured_trial(diagnosis.recommended_name) if is_enough else None


def severity_of_loss(times: Times, trial: Trial, share: float | None, is_cured: Callable[[Trial], bool]) -> Severity:
    """
    Returns ``warning`` for a loss of at least 2 %, ``error`` if a verified cure saves the baseline 5 %, else ``note``.

    Args:
        share: Share of the trial's time that the problem takes; another configuration may save more for other reasons.
        is_cured: Function that says whether a trial is free of the problem.
    """
    if trial.is_static or share is None or share < NEGLIGIBLE_SHARE:
        return "note"
    cure = verified_cure(times.diagnosis) if share >= ERROR_GAIN and times.is_baseline(trial.name) else None
    return "error" if cure is not None and is_cured(cure) else "warning"


def severity_of_gain(gain: Ratio | None) -> Severity:
    """Returns ``warning`` if another configuration is certainly faster, by at least 2 %, else ``note``."""
    is_felt = gain is not None and gain.verdict == FASTER and gain.median >= 1 + NEGLIGIBLE_SHARE
    return "warning" if is_felt else "note"


# ------------------------------------------------------------------------------------------- cures that were tried
def is_of_interest(diagnosis: Diagnosis, finding: Finding) -> bool:
    """Whether to keep a finding. Of a trial with cures, only LD402 is kept, unless the trial is recommended."""
    trial = diagnosis.find_trial(finding.configuration)
    is_of_cure = trial is not None and bool(trial.configuration.cures)
    return not is_of_cure or finding.code == "LD402" or finding.configuration == diagnosis.recommended_name


def with_measured_cure(diagnosis: Diagnosis, finding: Finding) -> Finding:
    """
    Returns the finding with its cure and the measured gain as suggestion; the same finding if no cure was tried.

    A note becomes a warning if its cure is recommended and gains at least 2 %. For a format that eager mode loses
    (LD104), only cures in eager mode count, because a compiler chooses layouts itself and may lose nothing.
    """
    own = diagnosis.find_trial(finding.configuration)
    is_eager_alone = finding.code == "LD104" and own is not None and own.configuration.backend == "eager"
    tried = [
        trial
        for trial in diagnosis.trials
        if _is_cure_of(finding, trial) and not (is_eager_alone and trial.configuration.backend != "eager")
    ]
    if not tried:
        return finding
    times = Times(diagnosis)
    best = max(tried, key=lambda trial: times.preference(trial.name))
    base_name, ratio = name_without_cures(best.configuration), None
    base = diagnosis.find_trial(base_name)
    if base is not None and base.measurement is not None and best.measurement is not None:
        ratio = ratio_of(best.name, base.measurement, best.measurement)
        ratio = ratio or times.over(best.name, base_name)  # if the two trials share too few rounds
    is_judged = best.name == diagnosis.recommended_name and finding.severity == "note"
    severity = severity_of_gain(ratio) if is_judged else finding.severity
    return msgspec.structs.replace(finding, severity=severity, suggestion=_cure_words(times, best, base_name, ratio))


def _is_cure_of(finding: Finding, trial: Trial) -> bool:
    """Whether a trial's only change is a cure of the finding, and changes the finding's module if both name modules."""
    cures = trial.configuration.cures
    if len(cures) != 1 or cures[0].answers != finding.code or trial.configuration.library_switches:
        return False
    return finding.module is None or not cures[0].modules or finding.module in cures[0].modules


def _cure_words(times: Times, trial: Trial, base_name: str, ratio: Ratio | None) -> str:
    if trial.same_as is not None:
        why = f"it compiles to the same code as {shown(trial.same_as)}"
    elif trial.failure is not None:
        why = f"it failed ({trial.failure.message})"
    elif not times.computes_right(trial.name):
        why = "its outputs differ"
    elif ratio is None:
        why = "it was not timed"
    elif (better := times.better_than(trial.name)) is not None:
        why = f"{shown(better.name)} is faster"
    elif ratio.verdict == FASTER:
        return f"{shown(trial.name)}: {gain_words(ratio, shown(base_name))}"
    else:
        why = gain_words(ratio, shown(base_name))
    return f"{shown(trial.name)} was tried: {why}"
