"""The whole diagnosis, as it is saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from layoutdoctor.diagnosis.answer import Account, Comparison, Finding, Ratio, Recommendation, WithoutFreezing
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.record import NonNegativeSeconds, Record
from layoutdoctor.diagnosis.subject import Environment, Subject
from layoutdoctor.diagnosis.trial import Trial
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    import pandas

    from layoutdoctor.diagnosis.conversion import RedundantPair

SCHEMA_VERSION = 1


class Reproduction(Record, frozen=True, kw_only=True):
    """
    What a reproducer did when it was run before it was handed out.

    Attributes:
        printed: What it printed; where it failed, the end of what it said of that.
        reproduced: Whether conversions were as recorded, and the ratio not on the other side of 1; None if it failed.
    """

    printed: str
    reproduced: bool | None


class Diagnosis(Record, frozen=True, kw_only=True):
    """
    The whole record: environment, trials, comparison, findings, recommendation.

    ``print(diagnosis)`` is the text report. In a notebook it shows as rich output.

    Attributes:
        trials: One per configuration, in the order of the configurations.
        findings: Sorted: most severe first, then by cost.
        interrupted: Set if the diagnosis did not run to its end, with what stopped it.
        accounts: The parts of the difference between the baseline and the recommended configuration, and if eager is
            faster, that between it and eager.
        reproduction: The result of running the reproducer; None if it was not run.
        stage_seconds: How long each stage of the diagnosis took, in their order; empty if they were not timed.
    """

    schema_version: int = SCHEMA_VERSION
    layoutdoctor_version: str
    created_at: str
    environment: Environment
    subject: Subject
    trials: Annotated[tuple[Trial, ...], msgspec.Meta(min_length=1)]
    comparison: Comparison | None = None
    findings: tuple[Finding, ...] = ()
    recommendation: Recommendation | None = None
    interrupted: str | None = None
    accounts: tuple[Account, ...] = ()
    reproduction: Reproduction | None = None
    stage_seconds: dict[str, NonNegativeSeconds] = msgspec.field(default_factory=dict)

    @property
    def is_recording(self) -> bool:
        """Whether it rests on the file of one run, so that nothing was varied, timed or compared."""
        return self.subject.mode == "trace"

    @property
    def own_trials(self) -> tuple[Trial, ...]:
        """The trials that have facts of their own: without those that are the same as another one."""
        return tuple(trial for trial in self.trials if trial.status != "same_as")

    @property
    def redundant_pairs(self) -> tuple[RedundantPair, ...]:
        """The redundant pairs of all trials; those of trials that are the same as another one count once."""
        return tuple(pair for trial in self.own_trials for pair in trial.redundant_pairs)

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The ratios to the baseline by configuration; empty if nothing was compared."""
        return {ratio.name: ratio for ratio in self.comparison.ratios} if self.comparison is not None else {}

    @property
    def compared_with(self) -> str | None:
        """The configuration that ratios refer to; None if nothing was compared."""
        return self.comparison.baseline if self.comparison is not None else None

    @property
    def speedup(self) -> Ratio | None:
        """The recommended configuration's ratio to the baseline; None if that is recommended, or nothing is."""
        return self.recommendation.speedup if self.recommendation is not None else None

    @property
    def without_freezing(self) -> WithoutFreezing | None:
        """The best configuration without frozen weights; None if the recommended one freezes none."""
        return self.recommendation.without_freezing if self.recommendation is not None else None

    @property
    def fastest(self) -> Trial | None:
        """The recommended trial where there is one, else the fastest measured; None if nothing was measured."""
        if self.recommended_name is not None:
            return self.find_trial(self.recommended_name)
        return self.find_trial(self.comparison.fastest[0]) if self.comparison and self.comparison.fastest else None

    @property
    def baseline(self) -> Trial | None:
        """The trial the ratios refer to; None if nothing was compared."""
        return self.find_trial(self.compared_with)

    @property
    def baseline_name(self) -> str:
        """The configuration that ratios refer to; torch.compile's default if nothing was compared."""
        return self.compared_with or BASELINE

    @property
    def recommended_name(self) -> str | None:
        """The configuration to use; None if none is recommended."""
        return self.recommendation.configuration if self.recommendation is not None else None

    def trial(self, name: str) -> Trial:
        """
        The trial of that name.

        Raises:
            UsageError: There is none.
        """
        found = self.find_trial(name)
        if found is None:
            known = ", ".join(trial.name for trial in self.trials)
            raise UsageError(f"cannot find trial {name!r} in the diagnosis: expected one of {known}")
        return found

    def find_trial(self, name: str | None) -> Trial | None:
        """The trial of that name; None if there is none, or no name."""
        return next((trial for trial in self.trials if trial.name == name), None)

    def measured_trial(self, name: str | None) -> Trial | None:
        """The trial that was measured for that name: itself, or the one it is the same as."""
        trial = self.find_trial(name)
        return self.find_trial(trial.same_as) if trial is not None and trial.same_as is not None else trial

    def save(self, path: str | Path) -> None:
        """Writes the report, scrubbed as all are, in the format of the suffix, such as ``.json`` or ``.html``."""
        reports_layer().save(self, path)

    def to_markdown(self) -> str:
        """The report as GitHub Markdown."""
        return str(reports_layer().render(self, "markdown"))

    def to_html(self) -> str:
        """The report as one HTML page that needs no network."""
        return str(reports_layer().render(self, "html"))

    def to_pandas(self, table: str = "trials") -> pandas.DataFrame:
        """
        One table of the diagnosis as a DataFrame.

        Args:
            table: ``trials``, ``rounds``, ``conversions``, ``redundant_pairs``, ``convolutions`` or ``findings``.

        Raises:
            UsageError: There is no such table, or pandas is not installed.
        """
        frame: pandas.DataFrame = reports_layer().to_pandas(self, table)
        return frame

    def __str__(self) -> str:
        return str(reports_layer().render(self, "text"))

    def __repr__(self) -> str:
        return str(reports_layer().one_line(self))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The report for a notebook: HTML, with the text report for frontends without it."""
        return {"text/html": self._repr_html_(), "text/plain": str(self)}

    def _repr_html_(self) -> str:
        """The short report as an HTML fragment, as notebooks show it."""
        return str(reports_layer().render_fragment(self))


def reports_layer() -> ModuleType:
    """The upper layer, which a record reaches here alone, and only when a report is asked for."""
    from layoutdoctor import reports

    return reports
