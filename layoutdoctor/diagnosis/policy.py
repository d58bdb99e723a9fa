"""A policy chooses a model's configuration by the shapes of its inputs and the number of threads."""

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
        shapes: Shape of every input tensor, in order.
        thread_count: Threads inside one operation on a CPU; None on other devices.
        weight: Frequency of this call in comparison with the other cases.
        baseline_seconds: Time of a call in the baseline.
        ratios: Ratios to the baseline of all measured configurations whose outputs are not wrong.
        use: Name of the configuration to use: the recommended one. If the diagnosis recommends the baseline or nothing,
            it is ``Policy.everywhere``. If ``Policy.everywhere`` is certainly slower than the baseline, wrong or not
            measured in this case, it is the baseline.
    """

    shapes: tuple[tuple[Size, ...], ...]
    thread_count: Count | None
    weight: Factor = 1.0
    baseline_seconds: PositiveSeconds
    ratios: tuple[Ratio, ...]
    use: str


class Policy(Record, frozen=True, kw_only=True):
    """
    The configuration to use for each kind of call of a model.

    Attributes:
        device: ``cpu`` or ``cuda``.
        configurations: The configurations that the cases use, the configuration in ``everywhere``, and the baseline.
        everywhere: The best configuration for a user who wants only one: of the configurations that are certainly
            faster than the baseline, the fastest over all cases. The baseline if no configuration is faster.
        how: Lines to paste that choose by the shapes of a call's tensors, and by the number of threads if it differs.
            If one configuration serves all calls, its lines only: in training, with a single case, or if all cases use
            the same eager configuration. None for the baseline.
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
        Returns the time of a call in a configuration: the baseline's time divided by the configuration's ratio.

        Args:
            at_most: Whether to divide by the lower end of the ratio's interval, not by its median.

        Returns:
            The time; None if the configuration was not measured, or its outputs are wrong.
        """
        if name == self.baseline:
            return case.baseline_seconds
        for ratio in case.ratios:
            if ratio.name == name:
                return case.baseline_seconds / (ratio.low if at_most else ratio.median)
        return None

    def seconds(self, name: str | None, *, at_most: bool = False) -> float | None:
        """
        Returns the time of all calls, each multiplied by its weight.

        Args:
            name: One configuration for all calls; None to use the configuration of each case.
            at_most: Whether to use the lower end of each ratio's interval, not its median.

        Returns:
            The time; None if, in any case, a configuration was not measured or its outputs are wrong.
        """
        weighted: list[float | None] = []
        for case in self.cases:
            seconds = self.seconds_of(case, name or case.use, at_most=at_most)
            weighted.append(None if seconds is None else case.weight * seconds)
        return sum_if_all_known(*weighted)
