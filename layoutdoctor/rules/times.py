"""How fast the configurations of a diagnosis are. Every answer is a ``Ratio``; the baseline has the ratio 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Ratio
from layoutdoctor.examination.choice import judge
from layoutdoctor.examination.gaps import is_recorded_like
from layoutdoctor.rules.wording import shown
from layoutdoctor.units import format_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
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
        comparison, advice = diagnosis.comparison, diagnosis.recommendation
        self.baseline = comparison.baseline if comparison is not None else ""
        self._ratios = {ratio.name: ratio for ratio in (comparison.ratios if comparison is not None else ())}
        recommended = advice.configuration if advice is not None else None
        self._recommended = None if recommended is None else self._measured(recommended)

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
