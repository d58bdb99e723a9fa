"""A policy: which configuration a model runs in, by the shapes of its inputs and the number of threads."""

from __future__ import annotations

from layoutdoctor.diagnosis.answer import Ratio
from layoutdoctor.diagnosis.layout import Size
from layoutdoctor.diagnosis.record import Count, Factor, PositiveSeconds, Record
from layoutdoctor.diagnosis.subject import Configuration, Mode
from layoutdoctor.units import sum_if_all_known

POLICY_SCHEMA_VERSION = 1


class Case(Record, frozen=True, kw_only=True):
    """
    One kind of call, as it was diagnosed.

    Attributes:
        shapes: Of every input tensor, in order.
        thread_count: Threads inside one operation, on a CPU.
        weight: How often this call comes, in comparison with the others.
        baseline_seconds: Time of a call in the baseline.
        ratios: To the baseline, of all configurations with right outputs that were measured.
        use: The configuration that the diagnosis recommends; if nothing is certainly faster than the baseline, the best
            single choice, unless it is slower than the baseline here.
    """

    shapes: tuple[tuple[Size, ...], ...]
    thread_count: Count | None
    weight: Factor = 1.0
    baseline_seconds: PositiveSeconds
    ratios: tuple[Ratio, ...]
    use: str


class Policy(Record, frozen=True, kw_only=True):
    """
    Which configuration to run a model in.

    Attributes:
        device: ``cpu`` or ``cuda``.
        configurations: Those that the cases use, the best single choice and the baseline.
        everywhere: The best single choice: the fastest over all cases of those that are certainly faster than the
            baseline, for whoever wants only one.
        how: Lines to paste, which choose by the shapes of a call's tensors. In training, or if one choice serves all
            calls, those of the single choice; None for the baseline.
    """

    schema_version: int = POLICY_SCHEMA_VERSION
    model: str
    mode: Mode
    torch: str | None
    device: str
    device_name: str | None
    baseline: str
    everywhere: str
    configurations: tuple[Configuration, ...]
    cases: tuple[Case, ...]
    how: str | None = None

    def seconds_of(self, case: Case, name: str, *, at_most: bool = False) -> float | None:
        """
        Time of a call in a configuration: the baseline's own, or that over the configuration's ratio.

        Args:
            at_most: Over the lower end of the ratio's interval.

        Returns:
            None if it was not measured with right outputs.
        """
        if name == self.baseline:
            return case.baseline_seconds
        ratio = next((ratio for ratio in case.ratios if ratio.name == name), None)
        times = 0.0 if ratio is None else ratio.low if at_most else ratio.median
        return case.baseline_seconds / times if times else None

    def seconds(self, name: str | None, *, at_most: bool = False) -> float | None:
        """
        Time of all calls, each as often as its weight says.

        Args:
            name: One configuration for all calls, None for the one that each case uses.
            at_most: As for ``seconds_of``.

        Returns:
            None if it was not measured in every case.
        """
        weighted: list[float | None] = []
        for case in self.cases:
            seconds = self.seconds_of(case, case.use if name is None else name, at_most=at_most)
            weighted.append(None if seconds is None else case.weight * seconds)
        return sum_if_all_known(*weighted)
