"""
One trial, live: a configuration prepared, compiled under capture, run, profiled and checked, up to the timing rounds.

It brings subjects, capture and measure together, and ends in a recording: nothing is examined here.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.capture.compat import compile_settings, distinct_options, missing_cpp_compiler
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.records import Failure, GradientLayout, Graph, Trial
from layoutdoctor.errors import LayoutDoctorError, first_line, text_of
from layoutdoctor.examination.choice import effective_options, global_options
from layoutdoctor.isolation.messages import TrialMemo
from layoutdoctor.measure.equivalence import check_equivalence
from layoutdoctor.measure.memory import out_of_memory, peak_memory
from layoutdoctor.measure.profiling import record_iterations
from layoutdoctor.recording.recording import Recording
from layoutdoctor.subjects.copies import layout_of
from layoutdoctor.subjects.cures import propose
from layoutdoctor.subjects.cures.cure import Seen
from layoutdoctor.subjects.prepare import formats_in_effect, prepare, same_preparation_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutdoctor.capture.session import CapturedGraph
    from layoutdoctor.diagnosis.records import Configuration, Equivalence, Measurement, Mode, TrialStatus
    from layoutdoctor.isolation.messages import Attempt, Lost, Proposal
    from layoutdoctor.measure.equivalence import Reference
    from layoutdoctor.recording.recording import Head, Iteration, Source
    from layoutdoctor.run.rehearsal import Rehearsal
    from layoutdoctor.subjects.prepare import PreparedModel
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject

_LOG_LINES = 12


@dataclass
class LiveTrial:
    """
    A trial while the diagnosis runs.

    Attributes:
        step: One iteration, warm; None where the trial failed or is the same as another one.
        stage: What was being done, for a failure's record.
        lost: How the process ended that ran it; None where it did not end.
        ran: Whether it came to its end, so that another configuration may turn out to be the same.
        is_skipped: Whether its failure is that it was not to be tried.
        proposals: The cures that what was seen of it speaks for.
    """

    configuration: Configuration
    source: Source = "live"
    step: Step | None = None
    compile_seconds: float | None = None
    stage: str = "prepare"
    same_as: str | None = None
    failure: Failure | None = None
    graphs: tuple[Graph, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    was_profiled: bool = False
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
    is_skipped: bool = False
    proposals: tuple[Proposal, ...] = ()
    announce: Callable[[str], None] = field(default=lambda stage: None, repr=False)

    @classmethod
    def earlier(cls, configuration: Configuration, attempt: Attempt, source: Source = "live") -> LiveTrial | None:
        """
        What an earlier process has found out about a configuration, be it that it took that process with it.

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
            source=source,
            same_as=trial.same_as,
            failure=trial.failure,
            equivalence=trial.equivalence,
            recompile_count=trial.recompile_count,
            graph_break_reasons=trial.graph_break_reasons,
            recompile_reasons=trial.recompile_reasons,
            gradient_layouts=trial.gradient_layouts,
            notes=list(trial.notes),
            lost=lost,
            ran=lost is None and trial.failure is None and trial.same_as is None,
            is_skipped=trial.status == "skipped",
            **msgspec.structs.asdict(memo),
        )

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.configuration.name

    @property
    def memo(self) -> TrialMemo:
        """What another process has to know of this trial beside its record."""
        return msgspec.convert(self, TrialMemo, from_attributes=True)

    def enter(self, stage: str) -> None:
        """Says what is done from now on, in the words of ``Failure.kind``."""
        self.stage = stage
        self.announce(stage)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """A block of which an exception, whatever the user's model may raise, is a result of the trial."""
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Records why there is no result, and lets go of the model."""
        log = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip().splitlines()
        message = str(error) if isinstance(error, LayoutDoctorError) else _in_words(error)
        self.failure = Failure(kind=self.stage, message=message, log="\n".join(log[-_LOG_LINES:]))
        self.step = None
        self.ran = False

    def is_same_as_one_of(self, others: Iterable[LiveTrial]) -> bool:
        """
        Whether this trial would only repeat another one, as far as its key and its code are known; it ends then.

        What was recorded there holds here, and the times stay there.
        """
        ran = [other for other in others if other.ran]
        for mine, theirs, why in (
            (self.key, [other.key for other in ran], "the same options and formats are in effect"),
            (self.code, [other.code for other in ran], "the generated code is the same"),
        ):
            if mine is not None and mine in theirs:
                self.same_as = ran[theirs.index(mine)].name
                self.notes.append(why)
                return True
        return False

    def record(self) -> Trial:
        """What was observed of the trial, as far as it has come; nothing is examined yet."""
        status: TrialStatus = "ok" if self.same_as is None else "same_as"
        if self.failure is not None:
            status = "skipped" if self.is_skipped else "failed"
        if self.lost is not None:
            status = self.lost.status
        return Trial(
            configuration=self.configuration,
            status=status,
            same_as=self.same_as if self.lost is None else None,
            failure=self.failure if self.lost is None else self.lost.failure,
            graphs=self.graphs,
            measurement=self.measurement,
            equivalence=self.equivalence,
            recompile_count=self.recompile_count,
            graph_break_reasons=self.graph_break_reasons,
            notes=tuple(self.notes),
            recompile_reasons=self.recompile_reasons,
            gradient_layouts=self.gradient_layouts,
            is_static=self.source == "static",
        )

    def recording(self, head: Head) -> Recording:
        """The trial as a recording of a diagnosis."""
        return Recording(
            head=head,
            trial=self.record(),
            source=self.source,
            iterations=self.iterations,
            was_profiled=self.was_profiled,
        )

    def hand_over(self, head: Head, attempt: Attempt) -> None:
        """Gives the trial to whoever keeps what is done; a process that does has its graphs and iterations then."""
        attempt.keep(self.recording(head), self.memo)
        if attempt.may_restart:
            self.graphs, self.iterations, self.was_profiled = (), (), False


def _in_words(error: BaseException) -> str:
    """An exception in one line; dynamo says only further down, behind this word, what happened."""
    shortage = out_of_memory(error)
    if shortage is not None:
        return f"{shortage}; diagnose it on a machine with more memory, or with a smaller input"
    lines = (line.strip() for line in text_of(error).splitlines())
    explanation = next((line for line in lines if line.startswith("Explanation: ")), "")
    return f"{first_line(error)}; {explanation}" if explanation else first_line(error)


def fingerprint(value: Hashable) -> str:
    """What two equal values, made of tuples, strings, numbers and None, have in common, also in two processes."""
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def run_trial(
    subject: LoadedSubject,
    configuration: Configuration,
    mode: Mode,
    reference: Reference,
    earlier: Sequence[LiveTrial],
    rehearsal: Rehearsal,
    trace_file: Path | None = None,
    announce: Callable[[str], None] = lambda stage: None,
) -> LiveTrial:
    """
    Everything of a trial but its timing; a failure is a result.

    Args:
        earlier: Trials already run, which this one may turn out to be the same as.
    """
    trial = LiveTrial(configuration, announce=announce)
    prepared: PreparedModel | None = None
    with trial.failing():
        prepared = prepare(subject, configuration, mode, rehearsal.shared)
        trial.notes += prepared.notes
        trial.key = fingerprint(same_preparation_key(prepared, configuration))
        if not trial.is_same_as_one_of(earlier):
            _run(trial, prepared, mode, reference, earlier, rehearsal, trace_file)
    if prepared is not None:
        _look_for_cures(trial, prepared, mode)
    return trial


def _look_for_cures(trial: LiveTrial, prepared: PreparedModel, mode: Mode) -> None:
    """Of a configuration without any; lines to paste change a module, so that a function has none."""
    if prepared.module is None or prepared.run is not prepared.module or trial.configuration.cures:
        return
    try:
        failure = None if trial.failure is None else f"{trial.failure.message}\n{trial.failure.log}"
        trial.proposals = propose(Seen(prepared.module, trial.graphs, mode, failure))
    except Exception as error:  # the trial is what it is without
        trial.notes.append(f"cures were not looked for: {first_line(error)}")


def warm_up(trial: LiveTrial, subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal) -> None:
    """Prepares, and where needed compiles, a trial of an earlier process again, to be timed here; it may fail now."""
    with trial.failing(), contextlib.ExitStack() as stack:
        trial.enter("prepare")
        prepared = prepare(subject, trial.configuration, mode, rehearsal.shared)
        step = prepared.step(mode, fresh_inputs=rehearsal.changes_inputs)
        if trial.configuration.backend == "inductor":
            trial.enter("compile")
            step.run = compiled(step.run, trial.configuration)
            stack.enter_context(compile_settings(global_options(trial.configuration)))
        step()
        trial.enter("run")
        step()
        step.forget_results()
        trial.step = step


def compiled(run: Callable[..., Any], configuration: Configuration) -> Callable[..., Any]:
    """The model compiled as a configuration of backend ``inductor`` says, at its first call."""
    options = {**effective_options(configuration), **distinct_options(configuration.name)}
    compiled_run: Callable[..., Any] = torch.compile(own_frame(run, configuration.name), options=options)
    return compiled_run


def _run(
    trial: LiveTrial,
    prepared: PreparedModel,
    mode: Mode,
    reference: Reference,
    earlier: Sequence[LiveTrial],
    rehearsal: Rehearsal,
    trace_file: Path | None,
) -> None:
    device = subject_device(prepared)
    captured: list[CapturedGraph] = []
    step = prepared.step(mode, fresh_inputs=rehearsal.changes_inputs)
    if trial.configuration.backend == "inductor":
        captured = _compile(trial, step, device)
        trial.code = code_key(prepared, trial)
        if trial.is_same_as_one_of(earlier):
            return
    else:
        trial.enter("run")
        step()
    trial.equivalence = check_equivalence(reference, step.results())
    trial.gradient_layouts = _gradient_layouts(prepared, step)
    step.forget_results()
    trial.notes += step.notes
    _profile(trial, step, prepared, captured, device, trace_file)
    trial.enter("measure")
    step.release()  # the gradients of what was profiled
    trial.peak_memory_bytes = peak_memory(step, device)
    trial.step = step
    trial.ran = True


def subject_device(prepared: PreparedModel) -> str:
    """Type of the device a prepared model runs on."""
    tensors = list(prepared.module.parameters()) if prepared.module is not None else []
    tensors += torch.utils._pytree.tree_leaves((prepared.args, prepared.kwargs))
    return next((leaf.device.type for leaf in tensors if isinstance(leaf, torch.Tensor)), "cpu")


def _gradient_layouts(prepared: PreparedModel, step: Step) -> tuple[GradientLayout, ...]:
    """Parameters whose gradient came with other strides than their own."""
    gradients = step.results().gradients
    named = prepared.module.named_parameters() if prepared.module is not None else ()
    found: list[GradientLayout] = []
    for name, parameter in named:
        gradient = gradients.get(name)
        if gradient is None or gradient.layout != torch.strided or gradient.stride() == parameter.stride():
            continue
        found.append(GradientLayout(parameter=name, layout=layout_of(parameter), gradient=layout_of(gradient)))
    return tuple(found)


def code_key(prepared: PreparedModel, trial: LiveTrial) -> str | None:
    """What equal generated code on equal layouts has in common; None where not all of the code is known."""
    codes = tuple(graph.code_fingerprint for graph in trial.graphs)
    if not codes or None in codes or trial.graph_break_reasons:
        return None
    return fingerprint((formats_in_effect(prepared), tuple(prepared.switches.items()), *codes))


def _compile(trial: LiveTrial, step: Step, device: str) -> list[CapturedGraph]:
    """Compiles the step's model at its first call, under capture."""
    trial.enter("compile")
    problem = missing_cpp_compiler() if device == "cpu" else None
    if problem is not None:
        raise LayoutDoctorError(problem)
    step.run = compiled(step.run, trial.configuration)
    with compile_settings(global_options(trial.configuration)), CompileCapture() as capture:
        start = time.perf_counter()
        step()
        trial.compile_seconds = time.perf_counter() - start
        compiled_count = len(capture.captured)
        trial.enter("run")
        step()
    trial.recompile_count = len(capture.captured) - compiled_count
    trial.graph_break_reasons = capture.graph_break_reasons
    trial.recompile_reasons = capture.recompile_reasons
    trial.graphs = capture.graphs
    trial.notes += [f"not recorded: {failure}" for failure in capture.failures]
    if capture.lowered_count == 0:
        trial.notes.append("torch.compile lowered no graph: the model ran as eager code")
    return capture.captured


def own_frame(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """
    A function around the model with a code object of its own.

    Dynamo keeps compiled code by code object: with one for each configuration no configuration meets another one's
    entries, the caller's own compiled functions are left alone, and all of it goes when the function goes.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"layoutdoctor_{name.replace('-', '_')}")
    return call


def _profile(
    trial: LiveTrial,
    step: Step,
    prepared: PreparedModel,
    captured: Sequence[CapturedGraph],
    device: str,
    trace_file: Path | None,
) -> None:
    """Profiled iterations, and in eager the operations as a graph; a failure here costs these, not the trial."""
    trial.enter("profile")
    trial.was_profiled = True
    try:
        iterations = record_iterations(step.ready, device, captured, trace_file)
        if trial.configuration.backend == "eager":
            trial.graphs = (_eager_graph(step, prepared),)
        trial.iterations = iterations
        logs = [iteration.log for iteration in iterations if iteration.log is not None]
        if logs:
            trial.onednn = (logs[0].version, logs[0].isa)
    except Exception as error:  # the configuration still has its times and outputs
        trial.notes.append(f"the kernel list was not recorded: {first_line(error)}")


def _eager_graph(step: Step, prepared: PreparedModel) -> Graph:
    kept: list[Any] = []
    run = step.run

    def keeping(*args: Any, **kwargs: Any) -> Any:
        output = run(*args, **kwargs)
        kept.append(output)
        return output

    step.run = keeping
    try:
        return record_eager_iteration(step.ready(), prepared.module, lambda: (kept, _gradients(prepared)))
    finally:
        step.run = run


def _gradients(prepared: PreparedModel) -> list[Any]:
    parameters = prepared.module.parameters() if prepared.module is not None else ()
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
