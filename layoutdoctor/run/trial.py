"""Prepares, compiles, checks, times and profiles one configuration; the results are examined in another process."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import statistics
import time
import traceback
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.capture.compat import compile_settings, missing_cpp_compiler
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.fx_graph import location_in_stack
from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis import Configuration, Failure, FailureCause, GradientLayout, Graph, Lack, Observed
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.subject import Mode
from layoutdoctor.errors import LayoutDoctorError, first_line, text_of
from layoutdoctor.examination.advice.applying import global_options
from layoutdoctor.measure.equivalence import Reference, check_equivalence
from layoutdoctor.measure.memory import out_of_memory, peak_memory
from layoutdoctor.measure.profiling import Recorder, with_names_of_packages
from layoutdoctor.measure.timing import choose_timer
from layoutdoctor.run.rehearsal import run_without_values
from layoutdoctor.subjects.copies import layout_of_tensor
from layoutdoctor.subjects.cures import Seen, propose
from layoutdoctor.subjects.prepare import (
    compile_as,
    compiler_options,
    formats_in_effect,
    global_settings,
    options_beside_code,
    prepare,
    same_preparation_key,
)
from layoutdoctor.words import count_of, joined
from layoutdoctor.workers.messages import Checked, Compiled, Failed, MeasuredMemory, Profiled, Ready, Turned

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.gpus import Gpu
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.messages import Proposal

_LOG_LINES = 12
_TARGET = "target"
"""The ``Failure.kind`` of a failure to lower for a GPU that this machine lacks."""
_WARM_UP_CALLS = 5
_WARM_UP_SECONDS = 0.3
_SETTLE_SECONDS = 0.005
"""
Time for untimed calls before a turn, because the first call after the turns of other configurations is slower.

A first call of 8 ms is slower by 10 %, a call of 15 ms by 0 %.
"""
_LONG_CALL_SECONDS = 0.25
"""Calls of at least this length need no untimed call before a turn."""


class TrialWork:
    """
    The work on one configuration of a subject, in its own process.

    Attributes:
        stage: The present stage, one of the words of ``Failure.kind``, such as ``compile``.
        step: One iteration of the prepared model.

    Args:
        target: A GPU that this machine lacks, for which the graphs are lowered; None compiles for the model's device.
        package: File for the package, if AOTInductor compiles the configuration.
    """

    step: Step
    _eager_key: str

    def __init__(
        self,
        subject: LoadedSubject,
        configuration: Configuration,
        mode: Mode,
        target: Gpu | None = None,
        package: Path | None = None,
    ) -> None:
        self.stage, self._package = "prepare", package
        self._subject, self._configuration, self._mode, self._target = subject, configuration, mode, target
        self._capture = CompileCapture()
        self._call_seconds = 0.0
        self._recorder = Recorder()
        self._trial = Observed(configuration=configuration, status="ok")

    # ------------------------------------------------------------------------------------------ the worker
    def prepare(self) -> str:
        """
        Applies the configuration to this process's own copy of the model.

        Returns:
            A key that is equal for configurations with the same options and formats in effect.
        """
        self.step = prepare(self._subject, self._configuration, self._mode)
        self._capture.model = self.step.module
        in_eager_mode = msgspec.structs.replace(self._configuration, backend="eager")
        self._eager_key = fingerprint(same_preparation_key(self.step, in_eager_mode))
        return fingerprint(same_preparation_key(self.step, self._configuration))

    def compile(self) -> Compiled:
        """
        Makes the first calls, and captures the work of torch.compile. With a target, only lowers the graphs.

        In training, these calls run only the forward, because forks of a process that ran a backward cannot run one.
        Raises any exception of the model or torch, and ``LayoutDoctorError`` without a C++ compiler.
        """
        step = self.step
        if self._target is not None:
            self.stage = _TARGET
            trial = msgspec.structs.replace(self._trial, notes=step.notes, is_static=True)
            needs_values = run_without_values(self._subject, self._mode) is None
            options = compiler_options(self._configuration)
            trial = _lower(trial, step, TargetLowering(self._target, options, needs_values=needs_values))
            return Compiled(trial=trial, code=code_key(step, trial) if trial.failure is None else None)
        seconds, first_count = None, 0
        if self._is_compiled:
            self.stage = "compile"
            if step.device == "cpu" and (problem := missing_cpp_compiler()):
                raise LayoutDoctorError(problem)
            step.run = compile_as(step.run, self._configuration, self._package)
            with self._captured():
                begin = time.perf_counter()
                self._first_call()
                seconds = time.perf_counter() - begin
                first_count = len(self._capture.captured)
                self.stage = "run"
                self._first_call(again=True)
        else:
            self.stage = "run"
            self._first_call()
        capture = self._capture
        self._trial = trial = msgspec.structs.replace(
            self._trial,
            graphs=capture.graphs,
            recompile_count=len(capture.captured) - first_count,
            graph_break_reasons=capture.graph_break_reasons,
            recompile_reasons=capture.recompile_reasons,
            notes=step.notes,
            lacks=capture.lacks,
            ran_as_eager=self._is_compiled and capture.lowered_count == 0,
            traced=capture.traced if self._configuration.name == BASELINE else None,
        )
        return Compiled(
            trial=trial,
            code=code_key(step, trial) if capture.lowered_count else self._eager_key,
            compile_seconds=seconds,
            proposals=self._proposals(trial.graphs),
        )

    def compile_as_a_user_does(self) -> None:
        """Makes the first call without capture, for a further start. Inductor's caches shorten the compile."""
        if self._is_compiled:
            self.stage = "compile"
            self.step.run = compile_as(self.step.run, self._configuration, self._package)
        with global_settings(self._configuration):
            self._first_call()

    @property
    def _is_compiled(self) -> bool:
        return self._configuration.backend == "inductor"

    def _first_call(self, *, again: bool = False) -> None:
        if self._mode == "training":
            self.step.run_forward()
        elif again:
            self.step()
        else:
            self.step.results()

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        with compile_settings(global_options(self._configuration)), self._capture:
            yield

    def failed(self, error: BaseException) -> Failed:
        """Returns the failure for an exception of the model or the compiler, and the cures that may help against it."""
        if self.stage == _TARGET:  # dynamo's exception says less than the backend's exception that it wraps
            error = getattr(error, "inner_exception", None) or error
        failure = failure_of(error, self.stage)
        if self._target is not None and self.stage == _TARGET and not isinstance(error, LayoutDoctorError):
            message = (
                f"cannot lower the model for {self._target.name}: {failure.message}; "
                "diagnose it where the GPU is (without a target)"
            )
            failure = msgspec.structs.replace(failure, message=message)
        return Failed(failure=failure, proposals=self._proposals(self._capture.graphs, failure))

    def _proposals(self, graphs: Sequence[Graph], failure: Failure | None = None) -> tuple[Proposal, ...]:
        """Returns cures that may help; none for a function, before preparation, or if the configuration has cures."""
        module = self._subject.model
        if self.stage == "prepare" or not isinstance(module, torch.nn.Module) or self._configuration.cures:
            return ()
        with contextlib.suppress(Exception):  # the trial is complete without proposals
            return propose(Seen(module, graphs, self._mode, failure))
        return ()

    # ------------------------------------------------------------------------------------------ a start
    def check(self, path: str | None) -> Checked:
        """
        Compares outputs and gradients of the first whole iteration with the reference, and completes the graphs.

        Only this method records the backward graph and, in eager mode, the graph of an iteration's operations.

        Args:
            path: File of the reference; None compares nothing.
        """
        step = self.step
        self.stage = "run"
        with self._captured() if self._is_compiled else contextlib.nullcontext():
            results = step.results()
            first_count = len(self._capture.captured)
            if self._mode == "training":
                step()
        graphs, recompiled = self._capture.graphs, len(self._capture.captured) - first_count
        equivalence, lacks = None, self._trial.lacks
        if path is not None:
            self.stage = "compare"
            equivalence = check_equivalence(Reference.load(path), results)
        layouts = _gradient_layouts(step)
        step.forget_results()
        if not self._is_compiled:
            try:
                graphs = (_eager_graph(step),)
            except Exception as error:  # the configuration still has its times and outputs
                reason = f"the operations were not recorded: {first_line(error)}"
                lacks = (*lacks, Lack(part="operations", reason=reason))
        trial = msgspec.structs.replace(
            self._trial,
            equivalence=equivalence,
            gradient_layouts=layouts,
            graphs=graphs,
            recompile_count=self._trial.recompile_count + recompiled,
            recompile_reasons=self._capture.recompile_reasons,
            lacks=lacks,
        )
        return Checked(trial=trial, proposals=() if self._is_compiled else self._proposals(graphs))

    def warm_up(self) -> Ready:
        """Makes two to six calls, so that caches and heap settle, and returns the time of the shortest call."""
        step = self.step
        self.stage = "measure"
        timer = choose_timer(step.device)
        with global_settings(self._configuration):
            seconds = [*timer(step, 1)]
            while len(seconds) <= _WARM_UP_CALLS and (len(seconds) < 2 or sum(seconds) < _WARM_UP_SECONDS):
                seconds += timer(step, 1)
        self._call_seconds = min(seconds)
        return Ready(call_seconds=self._call_seconds)

    def turn(self, calls: int) -> Turned:
        """Times calls. Before short calls on a CPU, untimed calls fill the caches and wake the threads."""
        self.stage = "measure"
        before = time.process_time()
        with global_settings(self._configuration):
            seconds = self._timed(calls)
        return Turned(seconds=seconds, cpu_seconds=time.process_time() - before)

    def _timed(self, calls: int) -> tuple[Seconds, ...]:
        step = self.step
        if step.device == "cpu" and self._call_seconds < _LONG_CALL_SECONDS:
            end = time.perf_counter() + _SETTLE_SECONDS
            step()
            while time.perf_counter() < end:
                step()
        return choose_timer(step.device)(step, calls)

    def profile(self, calls: int, trace_file: str | None) -> Profiled:
        """Times calls if the start is warm, and then profiles an iteration; if this fails, returns the reason."""
        step = self.step
        self.stage = "profile"
        with global_settings(self._configuration):
            try:
                call_seconds = statistics.median(self._timed(calls)) if self._call_seconds else None
                is_package = self._configuration.ahead_of_time  # the kernels of a package have other names
                captured = () if is_package else self._capture.captured
                generated = [(graph.name, graph.kernel_names, module) for graph, module in captured]
                trace = None if trace_file is None else Path(trace_file)
                found = self._recorder.record(step.ready, step.device, generated, trace)
                if is_package:
                    found = with_names_of_packages(found, self._capture.graphs)
            except Exception as error:  # the configuration still has its times and outputs
                reason = f"the kernel list was not recorded: {first_line(error)}"
                return Profiled(lacks=(Lack(part="kernels", reason=reason),))
            finally:
                step.release()
        return Profiled(iterations=(msgspec.structs.replace(found, call_seconds=call_seconds),))

    def measure_memory(self) -> MeasuredMemory:
        """Measures the peak memory of one iteration; a failure gives None."""
        peak = None
        with global_settings(self._configuration), contextlib.suppress(Exception):
            peak = peak_memory(self.step, self.step.device)
        return MeasuredMemory(peak_memory_bytes=peak)


def _lower(trial: Observed, step: Step, lowering: TargetLowering) -> Observed:
    """
    Runs the step once under capture, with the target's lowering as the backend of torch.compile.

    If a graph cannot be lowered, or no graph is traced, the trial fails.
    """
    target = lowering.target
    step.run = torch.compile(step.run, backend=lowering, dynamic=trial.configuration.compile_arguments.get("dynamic"))
    # The lowering comes first, so that the capture's hooks wrap the lowering's functions.
    with compile_settings({"freezing": False}), lowering.in_effect(), CompileCapture() as capture:
        capture.model = step.module
        (step if lowering.needs_values else step.run_without_values)()
    trial = msgspec.structs.replace(
        trial,
        graph_break_reasons=capture.graph_break_reasons,
        graphs=capture.graphs,
        notes=(*trial.notes, *lowering.notes),
        lacks=capture.lacks,
    )
    if lowering.failures:
        first, *others = lowering.failures
        more = f" (and {count_of(len(others), 'further graph')})" if others else ""
        failure = Failure(kind=_TARGET, message=first + more, log="\n".join(lowering.failures) if others else None)
    elif not capture.graphs:
        why = f" ({capture.graph_break_reasons[0]})" if capture.graph_break_reasons else ""
        message = (
            f"cannot lower anything for {target.name}: torch.compile traced no graph of this model{why}; "
            "the model would run as eager code"
        )
        failure = Failure(kind=_TARGET, message=message)
    else:
        return trial
    return msgspec.structs.replace(trial, status="failed", failure=failure)


def failure_of(error: BaseException, stage: str) -> Failure:
    """Makes the failure of an exception; ``stage`` is in the words of ``Failure.kind``."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
    message = str(error) if isinstance(error, LayoutDoctorError) else in_words(error)
    log = "\n".join(text.splitlines()[-_LOG_LINES:])
    cause: FailureCause | None = "out_of_memory" if out_of_memory(error) else None
    if any(words in text for words in _REFUSED_VIEW):
        cause = "refused_view"
    return Failure(kind=stage, message=message, log=log, location=location_in_stack(text), cause=cause)


_REFUSED_VIEW = ("view size is not compatible", "Cannot view a tensor with shape")
"""Parts of ``.view``'s errors in ATen, and in the Python reference that torch.compile traces; torch 2.7 to 2.13."""


_COMPILER_ERROR = re.compile(r"(?<=: )(fatal )?error: .+")


def in_words(error: BaseException) -> str:
    """
    Describes an exception in one line.

    An explanation by dynamo or a C++ compiler, and advice for a known cause, follow the first line of the error's text.
    """
    if shortage := out_of_memory(error):
        return f"{shortage}; diagnose it on a machine with more memory, or with a smaller input"
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    words = first_line(error)
    if words.endswith(" raised:") and len(lines) > 1:  # dynamo's words for an exception of a backend
        words += f" {lines[1]}"
    explanation = next((line for line in lines if line.startswith("Explanation: ")), None)
    by_compiler = next((found[0] for line in lines if (found := _COMPILER_ERROR.search(line))), None)
    half_written = any("file too short" in line or "invalid ELF header" in line for line in lines)
    mend = "an interrupted compile left this file in Inductor's cache: delete the file" if half_written else None
    if by_compiler is not None and "cuda" in by_compiler:
        mend = "AOTInductor needs a CUDA toolkit: set CUDA_HOME to one"
    if any(os.strerror(errno.ENOSPC) in line for line in lines):
        mend = "set TMPDIR, or TORCHINDUCTOR_CACHE_DIR, to a folder with room"
    if "nductor" in words and any(os.strerror(number) in words for number in (errno.EACCES, errno.EROFS)):
        mend = "set TORCHINDUCTOR_CACHE_DIR to a folder that you may write"
    return joined((words, explanation or by_compiler, mend))


def fingerprint(value: Hashable) -> str:
    """Hashes a value of tuples, strings, numbers and None; the hash is equal in all processes."""
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def code_key(step: Step, trial: Observed) -> str | None:
    """
    Returns a key of the generated code and its layouts; None if some of the code is not known.

    Configurations with equal keys run equal code. Options outside the code, such as CUDA graphs, are part of the key.
    """
    codes = tuple(graph.code_fingerprint for graph in trial.graphs)
    if not codes or None in codes or trial.graph_break_reasons:
        return None
    beside = options_beside_code(trial.configuration)
    return fingerprint((formats_in_effect(step), tuple(step.switches.items()), beside, *codes))


def _gradient_layouts(step: Step) -> tuple[GradientLayout, ...]:
    """Finds each parameter whose gradient has other strides than the parameter."""
    gradients = step.results().gradients
    found: list[GradientLayout] = []
    for name, parameter in step.module.named_parameters():
        gradient = gradients.get(name)
        if gradient is None or gradient.layout != torch.strided or gradient.stride() == parameter.stride():
            continue
        found.append(
            GradientLayout(parameter=name, layout=layout_of_tensor(parameter), gradient=layout_of_tensor(gradient))
        )
    return tuple(found)


def _eager_graph(step: Step) -> Graph:
    kept: list[Any] = []
    run = step.run

    def keeping(*args: Any, **kwargs: Any) -> Any:
        output = run(*args, **kwargs)
        kept.append(output)
        return output

    step.run = keeping
    try:
        gradients = (parameter.grad for parameter in step.module.parameters())
        return record_eager_iteration(step.ready(), step.module, lambda: (kept, list(gradients)))
    finally:
        step.run = run
        step.release()
