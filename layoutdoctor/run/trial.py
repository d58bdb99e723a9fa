"""
One trial, live: a configuration prepared, compiled under capture, run, profiled and checked, up to the timing rounds.

It brings subjects, capture and measure together, and ends in a recording: nothing is examined here.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import traceback
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor._version import __version__
from layoutdoctor.capture.building import NotRun, Postponed
from layoutdoctor.capture.compat import compile_settings, distinct_options, missing_cpp_compiler
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.fx_graph import location_in_stack
from layoutdoctor.capture.graph_cache import cached_graphs
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.records import Failure, GradientLayout, Trial
from layoutdoctor.errors import LayoutDoctorError, first_line, text_of
from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.isolation.messages import Progress, TrialMemo
from layoutdoctor.measure.equivalence import check_equivalence
from layoutdoctor.measure.memory import out_of_memory, peak_memory
from layoutdoctor.measure.profiling import record_iterations
from layoutdoctor.recording.recording import Head, Recording
from layoutdoctor.rules.graph_evidence import leaves_out_backward
from layoutdoctor.run.rehearsal import check_runs
from layoutdoctor.subjects.copies import layout_of
from layoutdoctor.subjects.cures import propose
from layoutdoctor.subjects.cures.cure import Seen
from layoutdoctor.subjects.prepare import formats_in_effect, prepare, same_preparation_key
from layoutdoctor.words import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutdoctor.capture.session import CapturedGraph
    from layoutdoctor.diagnosis.records import Configuration, Environment, Graph, Mode, Subject
    from layoutdoctor.isolation.messages import Listener, Request
    from layoutdoctor.measure.equivalence import Reference
    from layoutdoctor.recording.recording import Iteration
    from layoutdoctor.run.rehearsal import Rehearsal
    from layoutdoctor.subjects.prepare import PreparedModel
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject

_LOG_LINES = 12


@dataclass
class Lowered:
    """
    A configuration whose graphs are lowered, and of which nothing has run.

    Attributes:
        seconds: What that took, and the wait for its kernels.
        failure: What the C++ compiler raised; None where it did not.
        is_whole: Whether all was lowered that the first call lowers, and nothing of the model ran.
    """

    prepared: PreparedModel
    step: Step
    capture: CompileCapture
    postponed: Postponed
    seconds: float = 0.0
    failure: Exception | None = None
    is_whole: bool = False

    def finish(self) -> None:
        """Waits for its kernels. Before that no other trial runs: graphs of the same code have one module."""
        start = time.perf_counter()
        try:
            self.postponed.finish()
        except Exception as error:  # of what is kept by its source: compiled once more, it would not be built again
            self.failure = error
        self.seconds += time.perf_counter() - start


@dataclass
class LiveTrial:
    """
    A trial while the diagnosis runs: its record as far as it has come, and what no record holds.

    Attributes:
        record: What was observed; nothing is examined yet. Its status is ``ok`` for as long as nothing says otherwise.
        memo: What another process has to know of it beside its record.
        was_done: Whether an earlier process ran it, or was lost with it: it may be timed here, and is not run again.
        was_profiled: Whether it came as far as its profile, or was lowered.
        step: One iteration, warm; None where there is nothing to time.
        lowered: What was lowered beforehand, and waits to be run; None where nothing was.
        stage: What is being done, in the words of ``Failure.kind``.
    """

    record: Trial
    memo: TrialMemo
    listener: Listener
    was_done: bool
    iterations: tuple[Iteration, ...] = ()
    was_profiled: bool = False
    step: Step | None = None
    lowered: Lowered | None = None
    stage: str = "prepare"

    @classmethod
    def of(cls, configuration: Configuration, request: Request, listener: Listener) -> LiveTrial:
        """The trial of a configuration as earlier processes left it, be it that it took one with it; a new one else."""
        is_static = request.lower_for is not None
        before, lost = request.kept.trial(configuration.name), request.lost.get(configuration.name)
        record = before or Trial(configuration=configuration, status="ok", is_static=is_static)
        if lost is not None:
            record = msgspec.structs.replace(record, status=lost.status, failure=lost.failure, same_as=None)
        memo = request.kept.memos.get(configuration.name, TrialMemo())
        return cls(record, memo, listener, was_done=before is not None or lost is not None)

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.record.name

    @property
    def configuration(self) -> Configuration:
        """What is varied."""
        return self.record.configuration

    def observe(self, **facts: Any) -> None:
        """Adds what was observed to the record."""
        self.record = msgspec.structs.replace(self.record, **facts)

    def remember(self, **facts: Any) -> None:
        """The same for the memo."""
        self.memo = msgspec.structs.replace(self.memo, **facts)

    def note(self, *notes: str) -> None:
        """Adds facts that the reader should know."""
        self.observe(notes=(*self.record.notes, *notes))

    def enter(self, stage: str) -> None:
        """Says what is done from now on."""
        self.stage = stage
        self.listener.began(self.name, stage, is_new=False)

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
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
        message = str(error) if isinstance(error, LayoutDoctorError) else _in_words(error)
        log = "\n".join(text.splitlines()[-_LOG_LINES:])
        failure = Failure(kind=self.stage, message=message, log=log, location=location_in_stack(text))
        self.observe(status="failed", failure=failure)
        self.step = None

    def is_same_as_one_of(self, others: Iterable[LiveTrial]) -> bool:
        """
        Whether this trial would only repeat another one, as far as its key and its code are known; it ends then.

        What was recorded there holds here, and the times stay there.
        """
        ran = [other for other in others if other.record.status == "ok"]
        for mine, theirs, why in (
            (self.memo.key, [other.memo.key for other in ran], "the same options and formats are in effect"),
            (self.memo.code, [other.memo.code for other in ran], "the generated code is the same"),
        ):
            if mine is not None and mine in theirs:
                self.observe(status="same_as", same_as=ran[theirs.index(mine)].name)
                self.note(why)
                return True
        return False

    def recording(self, head: Head) -> Recording:
        """The trial as a recording of a diagnosis."""
        return Recording(
            head=head,
            trial=self.record,
            source="static" if self.record.is_static else "live",
            iterations=self.iterations,
            was_profiled=self.was_profiled,
        )

    def hand_over(self, head: Head) -> None:
        """Gives the trial to whoever keeps what is done; a process that does has its graphs and iterations then."""
        self.listener.keep(self.recording(head), self.memo)
        if self.listener.may_restart:
            self.observe(graphs=())
            self.iterations, self.was_profiled = (), False


def head_of(request: Request, subject: Subject, environment: Environment) -> Head:
    """What all recordings of a diagnosis share, when it begins, or goes on in this process."""
    kept = request.kept.head
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Head(
        layoutdoctor_version=__version__,
        created_at=now if kept is None else kept.created_at,
        environment=environment,
        subject=subject,
        configurations=(),
    )


def _in_words(error: BaseException) -> str:
    """An exception in one line; dynamo says only further down, behind this word, what happened."""
    shortage = out_of_memory(error)
    if shortage is not None:
        return f"{shortage}; diagnose it on a machine with more memory, or with a smaller input"
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    words = first_line(error)
    if words.endswith(" raised:") and len(lines) > 1:  # as dynamo says of its backends
        words += f" {lines[1]}"
    explanation = next((line for line in lines if line.startswith("Explanation: ")), None)
    half_written = any("file too short" in line or "invalid ELF header" in line for line in lines)
    mend = "a compile that was ended has left this file in Inductor's cache: delete it" if half_written else None
    return joined((words, explanation, mend))


def fingerprint(value: Hashable) -> str:
    """What two equal values, made of tuples, strings, numbers and None, have in common, also in two processes."""
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def rehearse(subject: LoadedSubject, request: Request, listener: Listener, step_count: int) -> Rehearsal:
    """
    The first step of every diagnosis, measured or not.

    Raises:
        SubjectError: The model does not run in eager mode.
    """
    stage = "running the model once in eager mode"
    listener.progress(Progress(stage, 0, step_count))
    listener.began(None, stage)
    return check_runs(subject, request.mode)


def run_trial(
    trial: LiveTrial,
    subject: LoadedSubject,
    request: Request,
    rehearsal: Rehearsal,
    reference: Reference,
    earlier: Sequence[LiveTrial],
) -> None:
    """
    Everything of a trial but its timing; a failure is a result.

    Args:
        earlier: Trials already run, which this one may turn out to be the same as.
    """
    prepared: PreparedModel | None = None
    lowered, trial.lowered = trial.lowered, None
    with trial.failing():
        prepared = lowered.prepared if lowered else None
        prepared = prepared or prepare(subject, trial.configuration, request.mode, rehearsal.shared)
        trial.note(*prepared.notes)
        trial.remember(key=fingerprint(same_preparation_key(prepared, trial.configuration)))
        if trial.is_same_as_one_of(earlier):
            return
        device = subject_device(prepared)
        captured: list[CapturedGraph] = []
        step = lowered.step if lowered else prepared.step(request.mode, fresh_inputs=rehearsal.changes_inputs)
        if trial.configuration.backend == "inductor":
            captured = _compile(trial, step, device, lowered)
            trial.remember(code=code_key(prepared, trial.record))
            if trial.is_same_as_one_of(earlier):
                return
        else:
            trial.enter("run")
            step()
        trial.observe(
            equivalence=check_equivalence(reference, step.results()), gradient_layouts=_gradient_layouts(prepared, step)
        )
        step.forget_results()
        trial.note(*step.notes)
        _profile(trial, step, prepared, captured, device, request.trace_file(trial.name))
        trial.enter("measure")
        step.release()  # the gradients of what was profiled
        trial.remember(peak_memory_bytes=peak_memory(step, device))
        trial.step = step
    if prepared is not None:
        _look_for_cures(trial, prepared, request.mode)


def _look_for_cures(trial: LiveTrial, prepared: PreparedModel, mode: Mode) -> None:
    """Of a configuration without any; lines to paste change a module, so that a function has none."""
    if prepared.module is None or prepared.run is not prepared.module or trial.configuration.cures:
        return
    try:
        failure = trial.record.failure
        words = None if failure is None else f"{failure.message}\n{failure.log}"
        trial.remember(proposals=propose(Seen(prepared.module, trial.record.graphs, mode, words)))
    except Exception as error:  # the trial is what it is without
        trial.note(f"cures were not looked for: {first_line(error)}")


def warm_up(trial: LiveTrial, subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal) -> None:
    """Prepares, and where needed compiles, a trial of an earlier process again, to be timed here; it may fail now."""
    with trial.failing(), contextlib.ExitStack() as stack:
        trial.enter("prepare")
        prepared = prepare(subject, trial.configuration, mode, rehearsal.shared)
        step = prepared.step(mode, fresh_inputs=rehearsal.changes_inputs)
        if trial.configuration.backend == "inductor":
            trial.enter("compile")
            step.run = compiled(step.run, trial.configuration)
            stack.enter_context(compile_settings(global_options(trial.configuration), uses_cache=True))
        step()
        trial.enter("run")
        step()
        step.forget_results()
        trial.step = step


def compiled(run: Callable[..., Any], configuration: Configuration, attempt: str = "") -> Callable[..., Any]:
    """The model compiled as a configuration of backend ``inductor`` says, at its first call; each attempt anew."""
    options = {**effective_options(configuration), **distinct_options(configuration.name + attempt)}
    compiled_run: Callable[..., Any] = torch.compile(own_frame(run, configuration.name), options=options)
    return compiled_run


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


def code_key(prepared: PreparedModel, trial: Trial) -> str | None:
    """What equal generated code on equal layouts has in common; None where not all of the code is known."""
    codes = tuple(graph.code_fingerprint for graph in trial.graphs)
    if not codes or None in codes or trial.graph_break_reasons:
        return None
    return fingerprint((formats_in_effect(prepared), tuple(prepared.switches.items()), *codes))


def lower(
    trial: LiveTrial, subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal, known: Container[str | None]
) -> None:
    """
    Lowers a configuration as far as that goes without running anything of it, so that its kernels are built meanwhile.

    That may come to nothing, for whatever reason: compiled again when its turn comes, it says so itself. A model that
    runs code of its own between graphs has changed by then, and is prepared anew.

    Args:
        known: Keys of what is lowered; what has one of them will turn out to be the same.
    """
    trial.enter("compile")
    with contextlib.suppress(Exception, SystemExit):
        prepared = prepare(subject, trial.configuration, mode, rehearsal.shared)
        key = fingerprint(same_preparation_key(prepared, trial.configuration))
        if subject_device(prepared) != "cpu" or key in known:
            return
        step = prepared.step(mode, fresh_inputs=rehearsal.changes_inputs)
        step.run = compiled(step.run, trial.configuration, " ahead")
        postponed = Postponed()
        lowered = trial.lowered = Lowered(prepared, step, CompileCapture(postponed.close), postponed)
        trial.remember(key=key)
        start = time.perf_counter()
        with _captured(lowered.capture, trial.configuration), postponed.lowering():
            try:
                step.try_out()
            except NotRun:
                lowered.is_whole = True
        lowered.is_whole &= not (lowered.capture.graph_break_reasons or lowered.capture.failures)
        lowered.seconds = time.perf_counter() - start


def finish_lowering(trial: LiveTrial) -> None:
    """Waits for the kernels of what was lowered beforehand; what was lowered in part only is lowered anew."""
    if trial.lowered is not None:
        trial.enter("compile")
        trial.lowered.finish()
        if not trial.lowered.is_whole and trial.lowered.failure is None:
            trial.lowered = None


def _compile(trial: LiveTrial, step: Step, device: str, lowered: Lowered | None) -> list[CapturedGraph]:
    """Compiles the step's model at its first call, under capture."""
    trial.enter("compile")
    problem = missing_cpp_compiler() if device == "cpu" else None
    if problem is not None:
        raise LayoutDoctorError(problem)
    if lowered is None:
        step.run = compiled(step.run, trial.configuration)
    elif lowered.failure is not None:
        raise lowered.failure
    capture = CompileCapture() if lowered is None else lowered.capture
    before = len(capture.captured)
    with _captured(capture, trial.configuration):
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        trial.remember(compile_seconds=seconds if lowered is None else seconds + lowered.seconds)
        if any(found.graph.direction != "backward" for found in capture.captured[before:]):
            del capture.captured[:before]  # what was lowered beforehand did not fit, and is not what runs
        compiled_count = len(capture.captured)
        trial.enter("run")
        step()
    trial.observe(
        recompile_count=len(capture.captured) - compiled_count,
        graph_break_reasons=capture.graph_break_reasons,
        recompile_reasons=capture.recompile_reasons,
        graphs=capture.graphs,
    )
    trial.remember(leaves_out_backward=leaves_out_backward(capture.graphs))
    trial.note(*(f"not recorded: {failure}" for failure in capture.failures))
    if capture.lowered_count == 0:
        trial.note("torch.compile lowered no graph: the model ran as eager code")
    return capture.captured


@contextlib.contextmanager
def _captured(capture: CompileCapture, configuration: Configuration) -> Iterator[None]:
    with compile_settings(global_options(configuration), uses_cache=True), cached_graphs(capture), capture:
        yield


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
        generated = [(graph.name, graph.kernel_names, module) for graph, module in captured]
        iterations = record_iterations(step.ready, device, generated, trace_file)
        if trial.configuration.backend == "eager":
            trial.observe(graphs=(_eager_graph(step, prepared),))
        trial.iterations = iterations
        logs = [iteration.log for iteration in iterations if iteration.log is not None]
        if logs:
            trial.remember(onednn=(logs[0].version, logs[0].isa))
    except Exception as error:  # the configuration still has its times and outputs
        trial.note(f"the kernel list was not recorded: {first_line(error)}")


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
