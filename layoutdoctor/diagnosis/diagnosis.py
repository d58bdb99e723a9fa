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
    The result of running the reproducer, a script that shows the worst finding, before it was handed out.

    Attributes:
        printed: The text that the reproducer printed; if it failed, the end of its error output.
        reproduced: Whether the conversions were as recorded and the ratio was on the same side of 1; None if the
            reproducer failed.
        given_back: Ratio of the two configurations in processes that give freed memory back to the system: median,
            lower end and upper end of the 95 % interval. None if only processes that keep freed memory were timed.
    """

    printed: str
    reproduced: bool | None
    given_back: tuple[float, float, float] | None = None


class Diagnosis(Record, frozen=True, kw_only=True):
    """
    The whole record: environment, trials, comparison, findings, recommendation.

    ``print(diagnosis)`` prints the text report. A notebook shows a diagnosis as rich output.

    Attributes:
        trials: The trial of each configuration, in the order of the configurations.
        findings: The findings: first about the whole diagnosis, the default and the recommended configuration, then
            about others. In each of these two parts, the most severe come first, then the costliest.
        interrupted: The reason why the diagnosis stopped early; None if it was finished.
        accounts: The parts of the difference between the baseline and the recommended configuration. If eager is faster
            than the baseline, also the parts of the difference between the baseline and eager.
        reproduction: The result of running the reproducer; None if it was not run.
        stage_seconds: Time that each stage of the diagnosis took, in the order of the stages; empty if not timed.
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
        """Whether the diagnosis is of one recorded run, so that no configurations were varied, timed or compared."""
        return self.subject.mode == "trace"

    @property
    def own_trials(self) -> tuple[Trial, ...]:
        """The trials with facts of their own: without the trials that are the same as another trial."""
        return tuple(trial for trial in self.trials if trial.status != "same_as")

    @property
    def redundant_pairs(self) -> tuple[RedundantPair, ...]:
        """The redundant pairs of all trials; trials that are the same as another trial are left out."""
        return tuple(pair for trial in self.own_trials for pair in trial.redundant_pairs)

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The ratios to the baseline by configuration; empty if no configurations were compared."""
        return {ratio.name: ratio for ratio in self.comparison.ratios} if self.comparison is not None else {}

    @property
    def compared_with(self) -> str | None:
        """The configuration that ratios refer to; None if no configurations were compared."""
        return self.comparison.baseline if self.comparison is not None else None

    @property
    def speedup(self) -> Ratio | None:
        """The recommended configuration's ratio to the baseline; None if the baseline, or nothing, is recommended."""
        return self.recommendation.speedup if self.recommendation is not None else None

    @property
    def without_freezing(self) -> WithoutFreezing | None:
        """The best configuration without frozen weights; None if the recommended one does not freeze the weights."""
        return self.recommendation.without_freezing if self.recommendation is not None else None

    @property
    def fastest(self) -> Trial | None:
        """The recommended trial if there is one, else the fastest trial of the comparison; None if there is neither."""
        if self.recommended_name is not None:
            return self.find_trial(self.recommended_name)
        return self.find_trial(self.comparison.fastest[0]) if self.comparison and self.comparison.fastest else None

    @property
    def baseline(self) -> Trial | None:
        """The trial that the ratios refer to; None if no configurations were compared."""
        return self.find_trial(self.compared_with)

    @property
    def baseline_name(self) -> str:
        """The configuration that ratios refer to; torch.compile's default if no configurations were compared."""
        return self.compared_with or BASELINE

    @property
    def recommended_name(self) -> str | None:
        """Name of the recommended configuration; None if there is no recommendation."""
        return self.recommendation.configuration if self.recommendation is not None else None

    def trial(self, name: str) -> Trial:
        """
        Returns the trial with the given name.

        Raises:
            UsageError: There is no such trial.
        """
        found = self.find_trial(name)
        if found is None:
            known = ", ".join(trial.name for trial in self.trials)
            raise UsageError(f"cannot find trial {name!r} in the diagnosis: expected one of {known}")
        return found

    def find_trial(self, name: str | None) -> Trial | None:
        """Returns the trial with the given name; None if there is no such trial, or no name."""
        return next((trial for trial in self.trials if trial.name == name), None)

    def measured_trial(self, name: str | None) -> Trial | None:
        """Returns the trial of a name, or the measured trial that it equals; None if there is no trial of this name."""
        trial = self.find_trial(name)
        return self.find_trial(trial.same_as) if trial is not None and trial.same_as is not None else trial

    def save(self, path: str | Path) -> None:
        """Writes the scrubbed report in the format of the path's suffix; an unknown suffix raises ``UsageError``."""
        reports_layer().save(self, path)

    def to_markdown(self) -> str:
        """Returns the report as GitHub Markdown."""
        return str(reports_layer().render(self, "markdown"))

    def to_html(self) -> str:
        """Returns the report as one HTML page that needs no network."""
        return str(reports_layer().render(self, "html"))

    def to_pandas(self, table: str = "trials") -> pandas.DataFrame:
        """
        Returns one table of the diagnosis as a DataFrame.

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
        """Returns the report for a notebook: HTML, and the text report for frontends without HTML."""
        return {"text/html": self._repr_html_(), "text/plain": str(self)}

    def _repr_html_(self) -> str:
        return str(reports_layer().render_fragment(self))


def reports_layer() -> ModuleType:
    """Imports the package of reports only when a report is needed, because records are on a lower line than reports."""
    from layoutdoctor import reports

    return reports
