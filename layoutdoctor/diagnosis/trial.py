"""The trial of one configuration: how it ended, its times, and whether its outputs are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis.conversion import RedundantPair
from layoutdoctor.diagnosis.graph import Convolution, Decision, Graph
from layoutdoctor.diagnosis.kernel import NO_KERNELS, KernelSummary
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.record import Count, Magnitude, NonNegativeSeconds, PositiveSeconds, Record
from layoutdoctor.diagnosis.subject import Configuration, SourceLocation
from layoutdoctor.errors import needs_torch

if TYPE_CHECKING:
    from collections.abc import Callable

TrialStatus = Literal["ok", "failed", "timed_out", "crashed", "skipped", "same_as"]
FailureCause = Literal["out_of_memory", "refused_view"]


class Failure(Record, frozen=True, kw_only=True):
    """
    The failure because of which a configuration has no result.

    Attributes:
        kind: Stage of the failure: ``prepare``, ``compile``, ``run``, ``compare``, ``measure``, ``profile``, or
            ``target`` for lowering for an absent GPU. For a whole model or file that failed, the class of the error.
        message: One line: the exception's class and text.
        log: Further text that may help, such as the last lines of the traceback; None otherwise.
        location: The user's line that ran last; None if not known.
        cause: A cause for which there is a remedy: memory ran out, or ``.view`` met strides that it cannot express;
            None for any other cause.
    """

    kind: str
    message: str
    log: str | None = None
    location: SourceLocation | None = None
    cause: FailureCause | None = None


class Rounds(Record, frozen=True, kw_only=True):
    """
    The times of one trial as they were taken.

    Attributes:
        round_seconds: Median time of a call in each round, in order, in the process that compiled the configuration.
        compile_seconds: Wall time of the first call, including the compile; None for eager.
        peak_memory_bytes: Peak bytes of live tensors in an iteration, minus the bytes at its start (device memory on a
            GPU).
        calls_per_round: Number of calls in each round.
        first_round: Number of the baseline's rounds before this trial's first round.
        starts: Times of the rounds of each further start. Start k of every trial was timed in the same rounds.
    """

    round_seconds: tuple[PositiveSeconds, ...]
    compile_seconds: NonNegativeSeconds | None
    peak_memory_bytes: Count | None
    calls_per_round: Count = 1
    first_round: Count = 0
    starts: tuple[tuple[PositiveSeconds, ...], ...] = ()


class Measurement(Rounds, frozen=True, kw_only=True):
    """
    The times of one trial, and the time of a call that follows from them.

    Attributes:
        median_seconds: Time of one call, as every report shows it. The baseline's time is measured while the machine
            was fast; the time of a trial with a ratio is the baseline's time divided by this ratio.
    """

    median_seconds: PositiveSeconds


class Equivalence(Record, frozen=True, kw_only=True):
    """
    The comparison of a configuration's outputs with the model's own outputs.

    The worst tensor is the output or gradient whose error is the largest share of its own tolerance.

    Attributes:
        status: ``equal``, ``different`` or ``not_checked``.
        max_abs_error: Largest difference of one value of the worst tensor from the reference.
        relative_error: Root mean square error of the worst tensor, divided by the root mean square of the reference's
            values. The divisor of a gradient is at least 1 % of the largest gradient of its module. If the values are
            sums that cancel to nothing but rounding errors, the divisor is eager's own error.
        eager_relative_error: The ``relative_error`` of the model in eager mode, in its own dtype and format, for
            comparison. None if eager itself is the reference.
        tolerance: The largest ``relative_error`` allowed for the worst tensor; None if eager's own error is too large
            to judge.
        reference: Dtype of the reference, such as ``float64``; ``eager float32`` if eager mode in this dtype is the
            reference, because no more exact run was possible.
        detail: Reason why the outputs were not checked, or the worst tensor and its difference.
        gradients_checked: Whether parameter gradients were compared, too.
        output_layouts_differ: Whether the outputs satisfy other memory formats than eager's outputs for the caller's
            input.
    """

    status: Literal["equal", "different", "not_checked"]
    max_abs_error: Magnitude | None = None
    relative_error: Magnitude | None = None
    eager_relative_error: Magnitude | None = None
    tolerance: Magnitude | None = None
    reference: str | None = None
    detail: str | None = None
    gradients_checked: bool = False
    output_layouts: tuple[Layout, ...] = ()
    output_layouts_differ: bool | None = None

    @property
    def error(self) -> float | None:
        """The error as reports show it: the relative error if known, else the largest difference, else None."""
        return self.max_abs_error if self.relative_error is None else self.relative_error


class GradientLayout(Record, frozen=True, kw_only=True):
    """A parameter whose gradient has other strides than the parameter."""

    parameter: str
    layout: Layout
    gradient: Layout


class TracedTensor(Record, frozen=True, kw_only=True):
    """A tensor that a traced model reads; its strides are in elements."""

    shape: tuple[Count, ...]
    stride: tuple[Count, ...]
    dtype: str
    requires_grad: bool = False


class TracedModel(Record, frozen=True, kw_only=True):
    """
    The model as torch.compile traced it, in one graph that needs only torch.

    Attributes:
        text: Python code of the graph: a function ``forward`` of ``self``, weights ``w0``... and inputs ``x0``...
        weights: Parameters and buffers, in the order of the arguments.
        inputs: All other tensors that the graph reads, in the order of the arguments.
    """

    text: str
    weights: tuple[TracedTensor, ...]
    inputs: tuple[TracedTensor, ...]


class Observed(Record, frozen=True, kw_only=True):
    """
    One configuration as it was observed.

    Attributes:
        status: How the trial ended; ``same_as`` if its options or generated code equal another trial's, so that only
            the other trial was measured.
        same_as: Name of the other trial if ``status`` is ``same_as``, else None.
        graphs: Every compiled graph; for eager, the recorded operations as one graph.
        recompile_count: Number of compiles, during this trial, of code that had been compiled before.
        graph_break_reasons: Dynamo's reasons for graph breaks, one line each.
        notes: Facts about this trial that the reader should know.
        lacks: The missing parts of the trial's record.
        ran_as_eager: Whether the trial was meant to be compiled, but torch.compile lowered no graph.
        recompile_reasons: Dynamo's reasons for recompilations, one line each.
        gradient_layouts: In training, every parameter whose gradient has other strides than the parameter.
        is_static: Whether the graphs were lowered for a device that was not there, so that nothing ran.
        traced: The model as torch.compile traced it, only for the default configuration; None if the model takes
            several graphs, or needs more than torch.
    """

    configuration: Configuration
    status: TrialStatus
    same_as: str | None = None
    failure: Failure | None = None
    graphs: tuple[Graph, ...] = ()
    measurement: Rounds | None = None
    equivalence: Equivalence | None = None
    recompile_count: Count = 0
    graph_break_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()
    ran_as_eager: bool = False
    recompile_reasons: tuple[str, ...] = ()
    gradient_layouts: tuple[GradientLayout, ...] = ()
    is_static: bool = False
    traced: TracedModel | None = None

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.configuration.name

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The layout decisions of its graphs."""
        return tuple(graph.decision for graph in self.graphs if graph.decision is not None)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The convolutions in the layout decisions of its graphs."""
        return tuple(convolution for card in self.decisions for convolution in card.convolutions)

    @property
    def is_right(self) -> bool:
        """Whether the outputs were compared with the reference and are equal."""
        return self.equivalence is not None and self.equivalence.status == "equal"

    @property
    def is_wrong(self) -> bool:
        """Whether the outputs were compared with the reference and differ."""
        return self.equivalence is not None and self.equivalence.status == "different"


class Trial(Observed, frozen=True, kw_only=True):
    """
    One configuration as it was observed, and the facts that were derived from the observation.

    Attributes:
        graphs: The graphs, with the conversions and layout breakers that were found in them.
        kernels: The kernels; if ``status`` is ``same_as``, the other trial's kernels.
        redundant_pairs: The redundant pairs; if ``status`` is ``same_as``, the other trial's pairs.
    """

    measurement: Measurement | None = None
    kernels: KernelSummary | None = None
    redundant_pairs: tuple[RedundantPair, ...] = ()

    @property
    def kernel_summary(self) -> KernelSummary:
        """The kernels; a summary without kernels if they were not recorded."""
        return self.kernels or NO_KERNELS

    @property
    def kernel_seconds(self) -> float | None:
        """Sum of the times of the kernels; None if they were not recorded."""
        return self.kernel_summary.seconds

    @property
    def seconds(self) -> float | None:
        """The time of one call as every report shows it; None if it was not measured."""
        return self.measurement.median_seconds if self.measurement is not None else None

    def compile(self, model: Callable[..., object]) -> Callable[..., object]:
        """
        Prepares a model with this trial's configuration.

        Args:
            model: An nn.Module or a function. It is not changed: a module is copied.

        Returns:
            A callable that converts its inputs and calls the copy, which is compiled unless the trial is eager.

        Raises:
            UsageError: The trial is a recorded run, or would change a module that the given function uses.
            SubjectError: The model cannot be copied.
        """
        with needs_torch():
            from layoutdoctor.subjects.prepare import compile_for

        return compile_for(model, self.configuration)
