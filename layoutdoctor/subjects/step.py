"""One iteration of a prepared model: what is timed, profiled and compared, the same for every configuration."""

from __future__ import annotations

import contextvars
import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.errors import SubjectError
from layoutdoctor.measure.equivalence import StepResults
from layoutdoctor.state.process import seeded
from layoutdoctor.state.switches import switched
from layoutdoctor.subjects.copies import clone_tensor, copy_inputs, input_tensors, layout_of
from layoutdoctor.subjects.weights import same_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import nn

    from layoutdoctor.diagnosis.records import Mode

_LOSS_WEIGHT_PERIOD = 1_000_003
"""After so many values the loss's gradient repeats itself; a prime, so that no stride is a multiple of it."""

FIRST_CALL_SEED = 0
"""Every configuration's first call draws from the same seed, so that dropout can be compared where it can be."""

COPIES_INPUTS_NOTE = (
    "the model changes its inputs in place: every call gets fresh copies, in every configuration; "
    "the time of copying is part of the times"
)


@dataclass
class Step:
    """
    One iteration, as a call without arguments.

    Inference runs under ``torch.no_grad()``. Training clears the gradients, runs forward, and runs backward of the
    scalar loss ``sum((output * w).sum())`` with fixed pseudo-random ``w``: autograd starts from the gradient ``w`` of
    each output, in that output's own layout. A plain ``output.sum()`` would start from a stride-0 gradient of ones,
    which no real loss gives and which vanishes behind a batch norm. The product and the sum themselves are not run:
    they are the same in every configuration and would only dilute what is compared. After the call the gradients are
    let go of, so that those of one configuration never lie beside those of another.

    Attributes:
        module: The module that owns the parameters; None for a function without any.
        fresh_inputs: Whether every call gets copies of the inputs; found out at the first call where False.
        first_seed: Seed of the first call's random numbers; later calls draw from where the generators stand.
        loss_weights: Those of other steps, by index and layout of the output; this one's are added.
        switches: Of libraries, set while an iteration runs and put back behind it. It runs in a thread of its
            own: cuDNN keeps the algorithm that a thread first found for a convolution, however it was found, so that
            in the thread of the others ``cudnn.benchmark`` would change nothing (``benchmark_cache``, which is
            ``thread_local``, in aten/src/ATen/native/cudnn/Conv_v8.cpp).
        is_alone: Whether there are no others in this process, so that it needs no such thread.
    """

    run: Callable[..., Any]
    module: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: Mode
    fresh_inputs: bool = False
    first_seed: int = FIRST_CALL_SEED
    loss_weights: dict[Hashable, torch.Tensor] = field(default_factory=dict, repr=False)
    switches: dict[str, bool] = field(default_factory=dict)
    is_alone: bool = False
    _thread: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)
    _weights: list[torch.Tensor | None] | None = field(default=None, init=False, repr=False)
    _first: StepResults | None = field(default=None, init=False, repr=False)
    _has_run: bool = field(default=False, init=False, repr=False)
    _has_gradients: bool = field(default=True, init=False, repr=False)

    def __call__(self) -> None:
        """Runs one iteration."""
        if not self._has_run:
            self._run_first()
            return
        args, kwargs = copy_inputs(self.args, self.kwargs) if self.fresh_inputs else (self.args, self.kwargs)
        self._iterate(args, kwargs)
        self._clear_gradients(args, kwargs)

    def start_alone(self) -> None:
        """The first iteration where nobody asks for its results: copied is nothing that a user would not copy."""
        tensors = input_tensors(self.args, self.kwargs)
        versions = [tensor._version for tensor in tensors]
        with seeded(self.first_seed):
            self._iterate(self.args, self.kwargs)
        self._clear_gradients(self.args, self.kwargs)
        self.fresh_inputs = versions != [tensor._version for tensor in tensors]
        self._has_run = True

    def try_out(self) -> None:
        """An iteration as the first one, of which nothing is kept, for whoever knows that it will be cut short."""
        args, kwargs = copy_inputs(self.args, self.kwargs)
        try:
            with seeded(self.first_seed):
                self._iterate(args, kwargs)
        finally:
            self._clear_gradients(args, kwargs)

    def ready(self) -> Callable[[], None]:
        """
        One iteration whose inputs are copied now, if they have to be: what is recorded of it is the model's own.

        Its gradients stay until the next iteration, or until ``release``.
        """
        args, kwargs = copy_inputs(self.args, self.kwargs) if self.fresh_inputs else (self.args, self.kwargs)

        def run() -> None:
            self._iterate(args, kwargs)

        return run

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know about how this step runs."""
        return (COPIES_INPUTS_NOTE,) if self.fresh_inputs else ()

    def results(self) -> StepResults:
        """
        Outputs and gradients of the first call, which is run now if it has not been.

        Raises:
            SubjectError: The model gives nothing that can be compared, or trained.
        """
        if not self._has_run:
            self._run_first()
        if self._first is None:
            raise RuntimeError("the results of this step were forgotten: read them before forget_results()")
        return self._first

    def forget_results(self) -> None:
        """Frees the tensors that ``results`` gives."""
        self._first = None

    def release(self) -> None:
        """Frees the gradients that an iteration left behind."""
        self._clear_gradients(self.args, self.kwargs)

    def _run_first(self) -> None:
        args, kwargs = copy_inputs(self.args, self.kwargs)  # what the model does to these tells how to run on
        tensors = input_tensors(args, kwargs)
        versions = [tensor._version for tensor in tensors]
        with seeded(self.first_seed):
            outputs = self._iterate(args, kwargs)
        if not self.fresh_inputs:
            # What is written by way of ``.data`` leaves the version as it is.
            given = input_tensors(self.args, self.kwargs)
            same = all(same_values(before, after) for before, after in zip(given, tensors, strict=True))
            self.fresh_inputs = versions != [tensor._version for tensor in tensors] or not same
        layouts = tuple(layout_of(output) for output in outputs)
        self._first = StepResults(
            [clone_tensor(output.detach()) for output in outputs], self._gradients(tensors), layouts
        )
        self._clear_gradients(args, kwargs)
        self._has_run = True

    def _iterate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        if not self.switches:
            return self._pass(args, kwargs)
        with switched(self.switches):
            if self.is_alone:
                return self._pass(args, kwargs)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1)
            stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
            here = contextvars.copy_context()  # torch's settings, which are each thread's own
            return self._thread.submit(here.run, self._pass_alone, args, kwargs, stream).result()

    def _pass_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> list[torch.Tensor]:
        """All in this thread, the backward too, on the caller's stream."""
        with torch.autograd.set_multithreading_enabled(False), torch.cuda.stream(stream):
            return self._pass(args, kwargs)

    def _pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        if self.mode != "training":
            with torch.no_grad():
                return self._forward(args, kwargs)
        if self._has_gradients:
            self._clear_gradients(args, kwargs)
        self._has_gradients = True
        with torch.enable_grad():
            outputs = self._forward(args, kwargs)
            if self._weights is None:
                weights = [_loss_weight(output, index, self.loss_weights) for index, output in enumerate(outputs)]
                self._weights = weights
                self._check_trainable()
            pairs = [(o, w) for o, w in zip(outputs, self._weights, strict=True) if w is not None]
            torch.autograd.backward([output for output, _ in pairs], [weight for _, weight in pairs])
        return outputs

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        output = self.run(*args, **kwargs)
        tensors = tensors_of(output)
        if not tensors:
            raise SubjectError(_no_tensor_message(output))
        return tensors

    def _check_trainable(self) -> None:
        if self._weights is not None and any(weight is not None for weight in self._weights):
            return
        parameters = list(self.module.parameters()) if self.module is not None else []
        trainable = sum(parameter.requires_grad for parameter in parameters)
        if parameters and not trainable:
            why, cure = "no parameter requires a gradient", "call model.requires_grad_(True)"
        elif not parameters:
            why, cure = "the model has no parameters", "call .requires_grad_(True) on an input"
        else:
            why, cure = "no output depends on a parameter through autograd", "let forward run without no_grad or detach"
        raise SubjectError(f"cannot diagnose training: {why}; {cure}, or diagnose inference (--mode inference)")

    def _clear_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.mode != "training":
            return
        for parameter in self.module.parameters() if self.module is not None else ():
            parameter.grad = None
        for tensor in input_tensors(args, kwargs):
            if tensor.requires_grad:
                tensor.grad = None
        self._has_gradients = False

    def _gradients(self, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.mode != "training":
            return {}
        named = [*self.module.named_parameters()] if self.module is not None else []
        inputs = [(f"input {index}", tensor) for index, tensor in enumerate(tensors)]
        return {name: tensor.grad.detach() for name, tensor in [*named, *inputs] if tensor.grad is not None}


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Every tensor in a model's output, in order: nested tuples, lists, dicts, model outputs and dataclasses."""
    found: list[torch.Tensor] = []
    _collect(output, found, set())
    return found


def _collect(value: Any, found: list[torch.Tensor], met: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
        return
    parts = _parts(value)
    if parts is None or id(value) in met:
        return
    met.add(id(value))
    for part in parts:
        _collect(part, found, met)


def _parts(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, part.name) for part in dataclasses.fields(value)]
    return list(vars(value).values()) if isinstance(value, types.SimpleNamespace) else None


def _no_tensor_message(output: Any) -> str:
    kind = type(output).__name__
    if inspect.iscoroutine(output):
        output.close()
        return "cannot diagnose the model: it returned a coroutine, expected tensors; give a function that is not async"
    if isinstance(output, Iterator):
        return (
            f"cannot diagnose the model: it returned a {kind}, which ran nothing yet; return a list or tuple of tensors"
        )
    return f"cannot diagnose the model: its output ({kind}) holds no tensor, expected at least one; return the tensors"


def _loss_weight(output: torch.Tensor, index: int, known: dict[Hashable, torch.Tensor]) -> torch.Tensor | None:
    """
    The gradient of the loss by one output: fixed by index and shape, the same in every configuration; None without one.

    The values are eighths between -2 and 2 without 0, which every floating-point type holds exactly, so that the
    float64 reference starts from the same ones. A scalar output counts as the loss itself.
    """
    if not output.requires_grad or output.layout != torch.strided:
        return None
    key = (index, tuple(output.shape), output.stride(), output.dtype, output.device)
    if key not in known:
        known[key] = _new_loss_weight(output, index)
    return known[key]


def _new_loss_weight(output: torch.Tensor, index: int) -> torch.Tensor:
    weight = torch.empty_like(output, requires_grad=False)  # with the output's strides
    if output.dim() == 0:
        return weight.fill_(1)
    generator = torch.Generator().manual_seed(1000 + index)
    # Single bytes: these two are not to be what takes most memory. Drawn one by one, a billion would take 13 s.
    count = min(output.numel(), _LOSS_WEIGHT_PERIOD)
    eighths = torch.randint(1, 17, (count,), generator=generator, device="cpu", dtype=torch.int8)
    eighths *= torch.randint(0, 2, (count,), generator=generator, device="cpu", dtype=torch.int8) * 2 - 1
    if output.numel() > count:
        eighths = eighths.to(output.device).repeat(-(-output.numel() // count))[: output.numel()]
    return weight.copy_(eighths.view(output.shape)).div_(8)
