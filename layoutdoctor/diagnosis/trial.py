"""One configuration: how it ended, what was measured, whether its outputs are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis.conversion import RedundantPair
from layoutdoctor.diagnosis.graph import Convolution, Decision, Graph
from layoutdoctor.diagnosis.kernel import NO_KERNELS, KernelSummary
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.record import Count, Magnitude, NonNegativeSeconds, PositiveSeconds, Record
from layoutdoctor.diagnosis.subject import Configuration, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Callable

TrialStatus = Literal["ok", "failed", "timed_out", "crashed", "skipped", "same_as"]
FailureCause = Literal["out_of_memory", "refused_view"]


class Failure(Record, frozen=True, kw_only=True):
    """
    Why a configuration has no result.

    Attributes:
        kind: Stage at which it failed: ``prepare``, ``compile``, ``run``, ``profile``, ``measure``.
        message: One line: the exception's class and text.
        log: The rest that may help, such as the last lines of the traceback; None if there is nothing more.
        location: The user's line that ran last; None if not known.
        cause: A cause that there is an answer to: memory ran out, or ``.view`` met strides that it cannot express.
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
        round_seconds: The least of each turn's calls, in round order, in the process that compiled the configuration.
        compile_seconds: Wall time of the first call, compiling included; None for eager.
        peak_memory_bytes: Most bytes of tensors alive above the start of an iteration (device memory on a GPU).
        calls_per_round: Calls in each turn.
        first_round: Index, from 0, of the baseline's round in which this trial's first round was timed.
        starts: ``round_seconds`` of each further start. Start k of two trials was timed in the same rounds.
    """

    round_seconds: tuple[PositiveSeconds, ...]
    compile_seconds: NonNegativeSeconds | None
    peak_memory_bytes: Count | None
    calls_per_round: Count = 1
    first_round: Count = 0
    starts: tuple[tuple[PositiveSeconds, ...], ...] = ()


class Measurement(Rounds, frozen=True, kw_only=True):
    """
    The times of one trial, and what follows from them.

    Attributes:
        median_seconds: Time of one call as every report shows it: the baseline's while the machine was fast, and for
            any other trial the baseline's time over the trial's ratio.
    """

    median_seconds: PositiveSeconds


class Equivalence(Record, frozen=True, kw_only=True):
    """
    Whether a configuration computes what the model computes.

    Attributes:
        status: ``equal``, ``different`` or ``not_checked``.
        max_abs_error: Largest difference of one value from the reference, in the worst tensor: the one whose error is
            the largest share of what is allowed there.
        relative_error: Root mean square error of the worst tensor, divided by the root mean square of the reference's
            values; if nothing but rounding is left of a sum whose terms cancel, by eager's own error. No unit.
        eager_relative_error: The same of the model in eager, in its own dtype and format: the yardstick. None if eager
            itself is the reference.
        tolerance: The largest ``relative_error`` allowed there; None if eager is too far off to tell.
        reference: ``float64`` eager; ``float32`` for half precision on a GPU; ``eager float32`` and the like if nothing
            more exact ran.
        detail: Why it was not checked, or which tensor is the worst and by how much it differs.
        gradients_checked: Whether parameter gradients were compared as well.
        output_layouts_differ: Whether they satisfy other memory formats than eager's on the caller's input.
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
        """The error as reports show it: relative, else the largest difference; None if there is neither."""
        return self.max_abs_error if self.relative_error is None else self.relative_error


class GradientLayout(Record, frozen=True, kw_only=True):
    """A parameter whose gradient came with other strides."""

    parameter: str
    layout: Layout
    gradient: Layout


class TracedTensor(Record, frozen=True, kw_only=True):
    """A tensor that a traced model is given; its strides in elements."""

    shape: tuple[Count, ...]
    stride: tuple[Count, ...]
    dtype: str
    requires_grad: bool = False


class TracedModel(Record, frozen=True, kw_only=True):
    """
    The model as torch.compile traced it, in one graph that needs nothing but torch.

    Attributes:
        text: Torch's own text of the graph, a function ``forward`` of ``self``, weights and inputs in this order.
        weights: Parameters and buffers.
        inputs: All other tensors it reads.
    """

    text: str
    weights: tuple[TracedTensor, ...]
    inputs: tuple[TracedTensor, ...]


class Observed(Record, frozen=True, kw_only=True):
    """
    One configuration as it was observed.

    Attributes:
        status: ``same_as`` where the options or the generated code equal another trial's: it is measured there.
        graphs: Every compiled graph; for eager the recorded operations as one.
        recompile_count: Compiles beyond the first of the same code, during this trial.
        graph_break_reasons: Dynamo's reasons, one line each.
        notes: Facts about this trial the reader should know.
        lacks: The parts of its record that are missing.
        ran_as_eager: Whether it was to be compiled, and torch.compile lowered no graph.
        recompile_reasons: Dynamo's reasons for compiling again, one line each.
        gradient_layouts: In training, every parameter whose gradient has other strides than itself.
        is_static: True if the graphs were lowered for a device that was not there, so that nothing ran.
        traced: The model's text, with the default configuration only; None if it needs more than torch.
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
        """The decision cards of its graphs."""
        return tuple(graph.decision for graph in self.graphs if graph.decision is not None)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The convolutions on the decision cards of its graphs."""
        return tuple(convolution for card in self.decisions for convolution in card.convolutions)

    @property
    def is_right(self) -> bool:
        """Whether its outputs were compared with the reference, and equal it."""
        return self.equivalence is not None and self.equivalence.status == "equal"

    @property
    def is_wrong(self) -> bool:
        """Whether its outputs were compared with the reference, and differ."""
        return self.equivalence is not None and self.equivalence.status == "different"


class Trial(Observed, frozen=True, kw_only=True):
    """
    One configuration as it was observed, and what follows from that.

    Attributes:
        graphs: With the conversions and breakers that were found in them.
        kernels: The kernel list; where ``status`` is ``same_as``, that of the other trial, as the pairs are.
    """

    measurement: Measurement | None = None
    kernels: KernelSummary | None = None
    redundant_pairs: tuple[RedundantPair, ...] = ()

    @property
    def kernel_summary(self) -> KernelSummary:
        """The kernels; if they were not recorded, a summary without kernels that says so."""
        return self.kernels or NO_KERNELS

    @property
    def kernel_seconds(self) -> float | None:
        """The sum of the times of its kernels; None if it was not recorded."""
        return self.kernel_summary.seconds

    @property
    def seconds(self) -> float | None:
        """The time of one call as every report shows it; None if it was not measured."""
        return self.measurement.median_seconds if self.measurement is not None else None

    def compile(self, model: Callable[..., object]) -> Callable[..., object]:
        """
        The model prepared the way this trial ran it, ready to call.

        Args:
            model: An nn.Module or a function. It is not changed: a module is copied.

        Returns:
            A callable that converts its inputs and calls the (compiled) copy.

        Raises:
            UsageError: The trial is a recorded one, which names no way to compile.
        """
        from layoutdoctor.subjects.prepare import compile_for  # needs torch, so only on use

        return compile_for(model, self.configuration)
