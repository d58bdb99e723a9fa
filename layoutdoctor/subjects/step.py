"""One iteration of a prepared model: what is timed, profiled and compared, the same for every configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.errors import SubjectError
from layoutdoctor.measure.equivalence import StepResults
from layoutdoctor.state.switches import seed_all, switched
from layoutdoctor.subjects.copies import clone_tensor, copy_inputs, input_tensors, layout_of, same_values

if TYPE_CHECKING:
    from collections.abc import Callable

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
    let go of, so that those of one configuration never lie beside those of another. Each iteration casts the weights
    again under an autocast that the caller entered, as one does that is entered for every call.

    Attributes:
        module: The module that owns the parameters; None for a function without any.
        fresh_inputs: Whether every call gets copies of the inputs; found out at the first call where False.
        first_seed: Seed of the first call's random numbers; later calls draw from where the generators stand.
        switches: Of libraries, set while an iteration runs and put back behind it.
    """

    run: Callable[..., Any]
    module: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: Mode
    fresh_inputs: bool = False
    first_seed: int = FIRST_CALL_SEED
    switches: dict[str, bool] = field(default_factory=dict)
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

    def run_forward(self) -> None:
        """
        One forward as the first iteration runs it, of which nothing is kept, so that it is compiled.

        Parameters and buffers get their values and modes back: the first iteration that follows computes what the
        first one would have.
        """
        args, kwargs = copy_inputs(self.args, self.kwargs)
        seed_all(self.first_seed)
        with _restored(self.module), switched(self.switches), torch.enable_grad():
            self._forward(args, kwargs)

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
        seed_all(self.first_seed)
        outputs = self._iterate(args, kwargs)
        if not self.fresh_inputs:
            # What is written by way of ``.data`` leaves the version as it is.
            given = input_tensors(self.args, self.kwargs)
            same = all(same_values(before, after) for before, after in zip(given, tensors, strict=True))
            self.fresh_inputs = versions != [tensor._version for tensor in tensors] or not same
        layouts = tuple(layout_of(output) for output in outputs)
        self._first = StepResults(
            [clone_tensor(output.detach()) for output in outputs], self._take_gradients(tensors), layouts
        )
        self._clear_gradients(args, kwargs)
        self._has_run = True

    def _iterate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        with switched(self.switches):
            return self._pass(args, kwargs)

    def _pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        try:
            return self._run_mode(args, kwargs)
        finally:
            torch.clear_autocast_cache()

    def _run_mode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        if self.mode != "training":
            with torch.no_grad():
                return self._forward(args, kwargs)
        if self._has_gradients:
            self._clear_gradients(args, kwargs)
        self._has_gradients = True
        with torch.enable_grad():
            outputs = self._forward(args, kwargs)
            if self._weights is None:
                weights = [_loss_weight(output, index) for index, output in enumerate(outputs)]
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

    def _take_gradients(self, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of the gradients, each of which is let go of: the next replay of a CUDA graph writes over its own."""
        if self.mode != "training":
            return {}
        named = [*self.module.named_parameters()] if self.module is not None else []
        inputs = [(f"input {index}", tensor) for index, tensor in enumerate(tensors)]
        taken = {}
        for name, tensor in (*named, *inputs):
            if tensor.grad is not None:
                taken[name] = clone_tensor(tensor.grad.detach())
                tensor.grad = None
        return taken


@contextlib.contextmanager
def _restored(module: nn.Module | None) -> Iterator[None]:
    """A block after which a module has the parameters, buffers, values and modes that it had before."""
    parts = [*module.modules()] if module is not None else []
    tables = [table for part in parts for table in (part._parameters, part._buffers)]
    held = [dict(table) for table in tables]
    values = {
        id(tensor): (tensor, tensor.detach().clone()) for one in held for tensor in one.values() if tensor is not None
    }
    training, trained = [part.training for part in parts], [tensor.requires_grad for tensor, _ in values.values()]
    yield
    for table, before in zip(tables, held, strict=True):
        table.update(before)
    for part, mode in zip(parts, training, strict=True):
        part.training = mode
    for (tensor, _), is_trained in zip(values.values(), trained, strict=True):
        tensor.requires_grad_(is_trained)
    with torch.no_grad():
        for tensor, value in values.values():
            tensor.copy_(value)


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


def _loss_weight(output: torch.Tensor, index: int) -> torch.Tensor | None:
    """
    The gradient of the loss by one output: fixed by index and shape, the same in every configuration; None without one.

    The values are eighths between -2 and 2 without 0, which every floating-point type holds exactly, so that the
    float64 reference starts from the same ones. A scalar output counts as the loss itself.
    """
    if not output.requires_grad or output.layout != torch.strided:
        return None
    return _new_loss_weight(output, index)


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
