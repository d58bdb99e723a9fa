"""
A trial while its diagnosis runs: what is known of one configuration so far, and its record.

Faces trials, static_trials and doctor; imports measure's memory, records, messages and errors.
"""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.errors import LayoutDoctorError, first_line, text_of
from layoutdoctor.measure.memory import out_of_memory
from layoutdoctor.messages import TrialMemo
from layoutdoctor.records import Failure, GradientLayout, Graph, KernelSummary, RedundantPair, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from layoutdoctor.messages import Attempt, Lost
    from layoutdoctor.records import Configuration, Equivalence, Measurement, TrialStatus
    from layoutdoctor.subjects.step import Step

_LOG_LINES = 12


def tell_nobody(stage: str) -> None:
    """
    Takes a stage where nobody wants to know.

    Args:
        stage: Any.
    """
    del stage


@dataclass
class LiveTrial:
    """
    A trial while the diagnosis runs.

    Attributes:
        configuration: What is varied.
        step: One iteration, warm; None where the trial failed or is the same as another one.
        compile_seconds: Wall time of the first call; None for eager.
        stage: What was being done, for a failure's record.
        lost: How the process ended that ran it; None where it did not end.
        ran: Whether it came to its end, so that another configuration may turn out to be the same.
        announce: Told each stage as it begins.
    """

    configuration: Configuration
    step: Step | None = None
    compile_seconds: float | None = None
    stage: str = "prepare"
    same_as: str | None = None
    failure: Failure | None = None
    graphs: tuple[Graph, ...] = ()
    kernels: KernelSummary | None = None
    pairs: tuple[RedundantPair, ...] = ()
    equivalence: Equivalence | None = None
    measurement: Measurement | None = None
    peak_memory_bytes: int | None = None
    recompile_count: int = 0
    graph_break_reasons: tuple[str, ...] = ()
    recompile_reasons: tuple[str, ...] = ()
    gradient_layouts: tuple[GradientLayout, ...] = ()
    notes: list[str] = field(default_factory=list)
    key: str | None = None
    code: str | None = None
    onednn: tuple[str | None, str | None] = (None, None)
    lost: Lost | None = None
    ran: bool = False
    announce: Callable[[str], None] = field(default=tell_nobody, repr=False)

    @classmethod
    def earlier(cls, configuration: Configuration, attempt: Attempt) -> LiveTrial | None:
        """
        What an earlier process has found out about a configuration, be it that it took that process with it.

        Args:
            configuration: What is varied.
            attempt: What earlier processes did.

        Returns:
            The trial, to be timed here without running it again; None where it is this process's turn.
        """
        lost, before = attempt.lost.get(configuration.name), attempt.trial(configuration.name)
        if lost is None and before is None:
            return None
        trial = before or Trial(configuration=configuration, status="ok")
        memo = attempt.memo(configuration.name) or TrialMemo()
        return cls(
            configuration=trial.configuration,
            compile_seconds=memo.compile_seconds,
            same_as=trial.same_as,
            failure=trial.failure,
            graphs=trial.graphs,
            kernels=trial.kernels,
            pairs=trial.redundant_pairs,
            equivalence=trial.equivalence,
            peak_memory_bytes=memo.peak_memory_bytes,
            recompile_count=trial.recompile_count,
            graph_break_reasons=trial.graph_break_reasons,
            recompile_reasons=trial.recompile_reasons,
            gradient_layouts=trial.gradient_layouts,
            notes=list(trial.notes),
            key=memo.key,
            code=memo.code,
            onednn=memo.onednn,
            lost=lost,
            ran=lost is None and trial.failure is None and trial.same_as is None,
        )

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.configuration.name

    @property
    def memo(self) -> TrialMemo:
        """What another process has to know of this trial beside its record."""
        return TrialMemo(
            key=self.key,
            code=self.code,
            compile_seconds=self.compile_seconds,
            peak_memory_bytes=self.peak_memory_bytes,
            onednn=self.onednn,
        )

    def enter(self, stage: str) -> None:
        """
        Says what is done from now on.

        Args:
            stage: As in ``Failure.kind``.
        """
        self.stage = stage
        self.announce(stage)

    def fail(self, error: BaseException) -> None:
        """Records why there is no result, and lets go of the model."""
        log = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip().splitlines()
        message = str(error) if isinstance(error, LayoutDoctorError) else _in_words(error)
        self.failure = Failure(kind=self.stage, message=message, log="\n".join(log[-_LOG_LINES:]))
        self.step = None
        self.ran = False

    def is_same_as_one_of(self, others: Iterable[LiveTrial]) -> bool:
        """
        Whether this trial only repeats another one, as far as its key and its code are known; it ends then.

        Args:
            others: Trials already run.
        """
        ran = [other for other in others if other.ran]
        for mine, theirs, why in (
            (self.key, [other.key for other in ran], "the same options and formats are in effect"),
            (self.code, [other.code for other in ran], "the generated code is the same"),
        ):
            if mine is not None and mine in theirs:
                self._stand_for(ran[theirs.index(mine)], why)
                return True
        return False

    def _stand_for(self, twin: LiveTrial, why: str) -> None:
        """Ends a trial that would only repeat another one: what was recorded there holds here, the times stay there."""
        self.same_as = twin.name
        self.notes.append(why)
        self.kernels, self.pairs = twin.kernels, twin.pairs
        if not self.graphs:  # never compiled; the nodes need not be saved twice
            self.graphs = tuple(msgspec.structs.replace(graph, nodes=(), buffers=()) for graph in twin.graphs)

    def record(self) -> Trial:
        """The trial as a record, as far as it has come."""
        status: TrialStatus = "ok" if self.same_as is None else "same_as"
        if self.failure is not None:
            status = "failed"
        if self.lost is not None:
            status = self.lost.status
        return Trial(
            configuration=self.configuration,
            status=status,
            same_as=self.same_as if self.lost is None else None,
            failure=self.failure if self.lost is None else self.lost.failure,
            graphs=self.graphs,
            kernels=self.kernels,
            redundant_pairs=self.pairs,
            measurement=self.measurement,
            equivalence=self.equivalence,
            recompile_count=self.recompile_count,
            graph_break_reasons=self.graph_break_reasons,
            notes=tuple(self.notes),
            recompile_reasons=self.recompile_reasons,
            gradient_layouts=self.gradient_layouts,
        )


def _in_words(error: BaseException) -> str:
    """An exception in one line; dynamo says only further down, behind this word, what happened."""
    shortage = out_of_memory(error)
    if shortage is not None:
        return f"{shortage}; diagnose it on a machine with more memory, or with a smaller input"
    lines = (line.strip() for line in text_of(error).splitlines())
    explanation = next((line for line in lines if line.startswith("Explanation: ")), "")
    return f"{first_line(error)}; {explanation}" if explanation else first_line(error)


def fingerprint(value: Hashable) -> str:
    """
    What two equal values have in common, also in two processes.

    Args:
        value: Made of tuples, strings, numbers and None.
    """
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()
