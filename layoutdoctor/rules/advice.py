"""
How fast the configurations of a diagnosis are, and what may be suggested: nothing that was measured as no faster, that
failed or goes against the recommendation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Ratio
from layoutdoctor.diagnosis.configurations import base_name
from layoutdoctor.examination.choice import judge, ratio_of
from layoutdoctor.examination.gaps import is_recorded_like
from layoutdoctor.rules.evidence import CHANNELS_LAST_CONFIGURATIONS, NEGLIGIBLE_SHARE
from layoutdoctor.units import format_ratio
from layoutdoctor.words import distinct, joined, listing, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.diagnosis.answer import Account, Finding, Severity
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.diagnosis.trial import Trial


class Times:
    """
    The ratios of a diagnosis.

    Attributes:
        diagnosis: The diagnosis.
        baseline: Name of the configuration that ratios refer to; empty if nothing was compared.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        comparison = diagnosis.comparison
        self.baseline = comparison.baseline if comparison is not None else ""
        self._ratios = {ratio.name: ratio for ratio in (comparison.ratios if comparison is not None else ())}
        recommended = diagnosis.measured_trial(diagnosis.recommended_name)
        self._recommended = None if recommended is None else recommended.name

    def _measured(self, name: str) -> str:
        trial = self.diagnosis.measured_trial(name)
        return name if trial is None else trial.name

    def is_baseline(self, name: str) -> bool:
        """Whether a configuration is the baseline, or was measured as it."""
        return bool(self.baseline) and self._measured(name) == self._measured(self.baseline)

    def ratio(self, name: str) -> Ratio | None:
        """The ratio of a configuration to the baseline; None if it was not measured."""
        if self.is_baseline(name):
            return Ratio(name=self._measured(name), low=1.0, median=1.0, high=1.0, verdict=EQUAL)
        return self._ratios.get(self._measured(name))

    def over(self, name: str, than: str) -> Ratio | None:
        """How many times faster one configuration is than another; None if one of both was not measured."""
        ratio, other = self.ratio(name), self.ratio(than)
        if ratio is None or other is None or other.low <= 0:
            return None
        low, median, high = ratio.low / other.high, ratio.median / other.median, ratio.high / other.low
        return Ratio(name=ratio.name, low=low, median=median, high=high, verdict=judge(low, high))

    def computes_right(self, name: str) -> bool:
        """Whether the outputs of a configuration are not known to be wrong."""
        trial = self.diagnosis.measured_trial(name)
        return trial is None or trial.equivalence is None or trial.equivalence.status != "different"

    def is_advisable(self, name: str, than: str) -> bool:
        """
        Whether a configuration may be advised instead of another one.

        It is faster, or the interval leaves that open and the median is above 1; it is not slower than the baseline;
        its outputs are right.
        """
        ratio, gain = self.ratio(name), self.over(name, than)
        if ratio is None or gain is None or not self.computes_right(name):
            return False
        is_slower = ratio.verdict == SLOWER or (ratio.median < 1 and ratio.verdict != EQUAL)
        return not is_slower and (gain.verdict == FASTER or (gain.verdict == INCONCLUSIVE and gain.median > 1))

    def fastest(self, names: Iterable[str]) -> Ratio | None:
        """The ratio of the fastest of some configurations that are faster than the baseline; None if none is."""
        faster = [
            ratio
            for name in names
            if (ratio := self.ratio(name)) is not None and ratio.verdict == FASTER and self.computes_right(name)
        ]
        return max(faster, key=self._preference, default=None)

    def _preference(self, ratio: Ratio) -> tuple[bool, float]:
        return ratio.name == self._recommended, ratio.median

    def clean_trials(self, trial: Trial, is_clean: Callable[[Trial], bool]) -> list[Trial]:
        """
        The other trials without some trouble, however fast.

        Args:
            is_clean: Whether a trial is free of it; asked only of trials that were recorded as ``trial`` was.
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
        """The recommended trial without the trouble, else the fastest one, if it may be advised instead of a trial."""
        clean = {other.name: other for other in self.clean_trials(trial, is_clean)}
        ratios = [r for name in clean if self.is_advisable(name, trial.name) and (r := self.ratio(name)) is not None]
        best = max(ratios, key=self._preference, default=None)
        return None if best is None else clean[best.name]

    def is_worth_it(self, trial: Trial, is_clean: Callable[[Trial], bool]) -> bool:
        """Whether trials without the trouble were measured and none of them may be advised: the trouble pays."""
        clean = self.clean_trials(trial, is_clean)
        is_measured = any(self.over(other.name, trial.name) is not None for other in clean)
        return is_measured and self.clean_alternative(trial, is_clean) is None


def ratio_words(ratio: Ratio) -> str:
    """``"1.15x, 0.98x to 1.31x"``."""
    return f"{format_ratio(ratio.median)}, {format_ratio(ratio.low)} to {format_ratio(ratio.high)}"


def speed_words(ratio: Ratio, baseline: str) -> str:
    """``"eager runs at 0.61x the speed of the default (0.60 to 0.62)"``."""
    ends = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return f"{shown(ratio.name)} runs at {format_ratio(ratio.median)} the speed of {shown(baseline)} ({ends})"


def alternative_words(times: Times, trial: Trial, other: Trial) -> str:
    """The measured ratio of another trial, which has been named, and of the trial a finding is about; empty if none."""
    better, own = times.ratio(other.name), times.ratio(trial.name)
    if better is None or times.is_baseline(other.name):
        return "" if own is None or times.is_baseline(trial.name) else speed_words(own, times.baseline)
    beside = "" if own is None or times.is_baseline(trial.name) else f"; {shown(own.name)} {format_ratio(own.median)}"
    return f"measured {ratio_words(better)}{beside}"


OFF = ("inductor-layout-opt-off",)
SWITCH_OFF = 'switch it off for this model: torch.compile(model, options={"layout_optimization": False})'
_ERROR_GAIN = 0.05
_FAILED = ("failed", "crashed", "timed_out")


def channels_last_ways(trial: Trial) -> tuple[str, ...]:
    """The configurations that give the model and its input channels_last, for a trial's backend."""
    return ("eager-channels-last",) if trial.configuration.backend == "eager" else CHANNELS_LAST_CONFIGURATIONS


def advised(times: Times, trial: Trial, ways: Sequence[str], words: str) -> str:
    """
    A suggestion for a trial; if the measurements speak against it, what was measured instead.

    Args:
        ways: The configurations that would follow it.
        words: What to do.
    """
    return other_cure(times, trial.name, lambda cure: cure.name in ways) or unless_refuted(times, trial, ways, words)


def unless_refuted(times: Times, trial: Trial, ways: Sequence[str], words: str) -> str:
    """The same, whatever is recommended."""
    return words if is_worth_trying(times, trial, ways) else refusal(times, trial, ways)


def is_worth_trying(times: Times, trial: Trial, ways: Iterable[str]) -> bool:
    """Whether none of some configurations was tried, or one of them may be advised."""
    tried = [answer for name in ways if (answer := _may_help(times, trial, name)) is not None]
    return not tried or any(tried)


def _may_help(times: Times, trial: Trial, name: str) -> bool | None:
    """None if a configuration was not tried, or its speed was not measured."""
    tried, measured = times.diagnosis.find_trial(name), times.diagnosis.measured_trial(name)
    if tried is None or measured is None or tried is trial:
        return None
    if tried.status in _FAILED or measured is trial or not times.computes_right(name):
        return False
    return None if times.over(name, trial.name) is None else times.is_advisable(name, trial.name)


def refusal(times: Times, trial: Trial, ways: Sequence[str]) -> str:
    """What this diagnosis knows of configurations that are not worth trying again."""
    failed, measured = [], []
    tried = {name: found for name in ways if (found := times.diagnosis.find_trial(name)) is not None}
    for name, one in tried.items():
        if one.status in _FAILED or not times.computes_right(name):
            failed.append(shown(name))
        elif times.diagnosis.measured_trial(name) is not trial:
            ratio = times.ratio(trial.name if times.is_baseline(name) else name)
            measured += [speed_words(ratio, times.baseline)] if ratio is not None else []
    facts = (
        listing(distinct(measured)),
        f"{listing(failed)} failed, or computed something else" if failed else None,
    )
    return joined(("no configuration that was tried is faster", joined(facts)), ": ")


def other_cure(times: Times, name: str, is_this: Callable[[Configuration], bool]) -> str | None:
    """
    The recommendation, in words, if a rule's own cure would go against it; None if it does not.

    Args:
        name: The configuration the finding is about; another one is recommended instead of the baseline only.
        is_this: Whether a configuration follows the rule's cure.
    """
    advice = times.diagnosis.recommendation
    if advice is None or advice.configuration is None or not times.is_baseline(name):
        return None
    chosen = [t.configuration for t in times.diagnosis.trials if advice.configuration in (t.name, t.same_as)]
    if not chosen or times.is_baseline(advice.configuration) or any(map(is_this, chosen)):
        return None
    measured = f": measured {ratio_words(advice.speedup)}" if advice.speedup is not None else ""
    return f"use {shown(advice.configuration)}{measured}"


def use_instead(times: Times, trial: Trial, other: Trial, what: str) -> str:
    """
    The suggestion to use another trial, behind the recommended one if that is a third one.

    Args:
        what: What the other one does better, such as ``has no round trip``.
    """
    measured = alternative_words(times, trial, other)
    recommended = other_cure(times, trial.name, lambda cure: cure.name == other.name)
    if recommended is not None:
        return f"{recommended}; {shown(other.name)} {what}, {measured}"
    return f"use {shown(other.name)}: it {what}; {measured}"


def use_or_recommended(diagnosis: Diagnosis, account: Account) -> str:
    """The suggestion to use the faster one of an account, or the recommended one if that is a third one."""
    recommended = other_cure(Times(diagnosis), account.slower, lambda cure: cure.name == account.faster)
    return recommended or f"use {shown(account.faster)}"


def verified_cure(diagnosis: Diagnosis) -> Trial | None:
    """The recommended trial, if further starts agreed and it gains enough for an error; else None."""
    advice = diagnosis.recommendation
    if advice is None or not advice.verified or advice.speedup is None:
        return None
    is_enough = advice.speedup.verdict == FASTER and advice.speedup.median >= 1 + _ERROR_GAIN
    return diagnosis.measured_trial(diagnosis.recommended_name) if is_enough else None


def severity_of_gain(gain: Ratio | None) -> Severity:
    """``warning`` if another configuration gains what can be felt, else ``note``."""
    is_felt = gain is not None and gain.verdict == FASTER and gain.median >= 1 + NEGLIGIBLE_SHARE
    return "warning" if is_felt else "note"


# ------------------------------------------------------------------------------------------- cures that were tried
def is_of_interest(diagnosis: Diagnosis, finding: Finding) -> bool:
    """False for a finding about a cure that was tried and is not recommended, unless its outputs differ."""
    trial = diagnosis.find_trial(finding.configuration)
    is_of_cure = trial is not None and bool(trial.configuration.cures)
    return not is_of_cure or finding.code == "LD402" or finding.configuration == diagnosis.recommended_name


def with_measured_cure(diagnosis: Diagnosis, finding: Finding) -> Finding:
    """
    A finding that suggests its cure with the gain that was measured; as it is if none was tried.

    A note whose cure is recommended, and gains what can be felt, becomes a warning. What eager mode loses (LD104) is
    not answered by a compiled trial: the compiler chooses the layouts there, and may lose nothing.
    """
    own = diagnosis.find_trial(finding.configuration)
    is_eager_alone = finding.code == "LD104" and own is not None and own.configuration.backend == "eager"
    for trial in diagnosis.trials:
        if is_eager_alone and trial.configuration.backend != "eager":
            continue
        cures = trial.configuration.cures
        is_own = len(cures) == 1 and cures[0].answers == finding.code and not trial.configuration.library_switches
        if is_own and (finding.module is None or not cures[0].modules or finding.module in cures[0].modules):
            base, ratio = diagnosis.find_trial(base_name(trial.configuration)), None
            if base is not None and base.measurement is not None and trial.measurement is not None:
                ratio = ratio_of(trial.name, base.measurement, trial.measurement)
                ratio = ratio or Times(diagnosis).over(trial.name, base.name)  # if they share no rounds
            is_judged = trial.name == diagnosis.recommended_name and finding.severity == "note"
            severity = severity_of_gain(ratio) if is_judged else finding.severity
            words = _cure_words(diagnosis, trial, base, ratio)
            return msgspec.structs.replace(finding, severity=severity, suggestion=words)
    return finding


def _cure_words(diagnosis: Diagnosis, trial: Trial, base: Trial | None, ratio: Ratio | None) -> str:
    if trial.same_as is not None:
        why = f"the compiled code is the same as of {shown(trial.same_as)}"
    elif trial.failure is not None:
        why = f"it failed ({trial.failure.message})"
    elif not Times(diagnosis).computes_right(trial.name):
        why = "its outputs differ"
    elif ratio is None:
        why = "it was not timed"
    elif ratio.verdict == FASTER and base is not None:
        return f"{shown(trial.name)}: measured {ratio_words(ratio)}, against {shown(base.name)}"
    else:
        why = f"{'measured' if ratio.verdict == INCONCLUSIVE else 'no faster, measured'} {ratio_words(ratio)}"
    return f"{shown(trial.name)} was tried: {why}"
