"""The step: one iteration of a model with a configuration applied. Steps are timed, profiled and compared."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from layoutdoctor.errors import SubjectError
from layoutdoctor.measure.equivalence import StepResults
from layoutdoctor.state.switches import seed_all, switched
from layoutdoctor.subjects.copies import clone_tensor, copy_inputs, device_of_model, input_tensors, layout_of_tensor

if TYPE_CHECKING:
    from torch import nn

    from layoutdoctor.diagnosis.subject import Mode

FIRST_CALL_SEED = 0
"""Seed for the first call of every configuration: with equal random numbers, dropout can have equal results."""

COPIES_INPUTS_NOTE = (
    "the model changes its inputs in place: every call gets fresh copies, in every configuration; "
    "the time of copying is part of the times"
)


@dataclass
class Step:
    """
    A call without arguments that runs one iteration of a model.

    Inference runs under ``torch.no_grad()``. Training runs forward, and then backward of the scalar loss
    ``sum((output * w).sum())`` with fixed pseudo-random ``w``. The loss itself is not computed: autograd starts from
    its gradient ``w``, which has the layout of the output. A plain ``output.sum()`` would be unlike a real loss: its
    gradient of ones has stride 0, and a batch norm turns this gradient into zeros. Gradients are freed after the call,
    so that they take no memory from another configuration. Under an autocast that the caller entered, each iteration
    casts the weights again.

    Attributes:
        module: The module that owns the parameters; without any for a function that uses no module.
        notes: Facts for the report about the preparation.
        first_seed: Seed of the first call's random numbers; later calls do not seed.
        switches: Values of library switches, set during an iteration and restored after it.
    """

    run: Callable[..., Any]
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: Mode
    first_seed: int = FIRST_CALL_SEED
    switches: Mapping[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _changes_inputs: bool = field(default=False, init=False)
    _parameters: list[torch.nn.Parameter] = field(init=False)
    _weights: list[torch.Tensor | None] = field(default_factory=list, init=False)
    _weights_are_empty: bool = field(default=False, init=False)
    _first: StepResults | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._parameters = [*self.module.parameters()]

    def __call__(self) -> None:
        """Runs one iteration."""
        if self._first is None:
            self.results()
            return
        args, kwargs = self._inputs()
        self._iterate(args, kwargs)
        self._clear_gradients(args, kwargs)

    def run_forward(self) -> None:
        """
        Runs one forward pass to get the model compiled; drops the results.

        Parameters and buffers get their old values back, so that the results of the first iteration do not change.
        """
        args, kwargs = copy_inputs(self.args, self.kwargs)
        seed_all(self.first_seed)
        with _restored(self.module), switched(self.switches), torch.enable_grad():
            self._forward(args, kwargs)

    def run_without_values(self) -> None:
        """Runs one iteration without copying inputs; in training, backward starts from uninitialized gradients."""
        self._weights_are_empty = True
        self._iterate(self.args, self.kwargs)
        self.release()

    def ready(self) -> Callable[[], None]:
        """
        Prepares one iteration, and returns a function that runs only the model's own work.

        The function copies no inputs: inputs that the model changes are copied now. Gradients stay until ``release``.
        """
        self.release()
        args, kwargs = self._inputs()

        def run() -> None:
            self._iterate(args, kwargs)

        return run

    def take_own_inputs(self) -> None:
        """
        Gives this start its own copy of the inputs, if the model is on a CPU.

        Otherwise, all starts would read the same memory pages, and the place of these pages affects the time.
        """
        if self.device == "cpu":
            self.args, self.kwargs = copy_inputs(self.args, self.kwargs, tensors_only=True)

    @property
    def device(self) -> str:
        """Device of the model and its inputs, such as ``cpu`` or ``cuda:1``."""
        return device_of_model(self.module, self.args, self.kwargs)

    def notes_on_run(self) -> tuple[str, ...]:
        """Returns facts for the report that the first call showed."""
        return (COPIES_INPUTS_NOTE,) if self._changes_inputs else ()

    def results(self) -> StepResults:
        """
        Returns outputs and gradients of the first call; if there was no call yet, runs one.

        Raises:
            SubjectError: The output holds no tensor, or in training no tensor that requires a gradient.
        """
        if self._first is None:
            self._first = self._run_first()
        return self._first

    def forget_results(self) -> None:
        """Frees the tensors of ``results``, which is empty from then on."""
        self._first = StepResults([], {}, ())

    def release(self) -> None:
        """Frees the gradients that an iteration left behind."""
        self._clear_gradients(self.args, self.kwargs)

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return copy_inputs(self.args, self.kwargs) if self._changes_inputs else (self.args, self.kwargs)

    def _run_first(self) -> StepResults:
        args, kwargs = copy_inputs(self.args, self.kwargs)
        tensors = input_tensors(args, kwargs)
        versions = [tensor._version for tensor in tensors]
        self.release()  # gradients left by the user's code
        seed_all(self.first_seed)
        outputs = self._iterate(args, kwargs)
        self._changes_inputs = versions != [tensor._version for tensor in tensors]
        cloned = [clone_tensor(output.detach()) for output in outputs]
        return StepResults(cloned, self._take_gradients(tensors), tuple(layout_of_tensor(output) for output in outputs))

    def _iterate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        with switched(self.switches) if self.switches else contextlib.nullcontext():
            try:
                if self.mode == "training":
                    return self._train(args, kwargs)
                with torch.no_grad():
                    return self._forward(args, kwargs)
            finally:
                torch.clear_autocast_cache()

    def _train(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        with torch.enable_grad():
            outputs = self._forward(args, kwargs)
            if not self._weights:
                is_empty = self._weights_are_empty
                self._weights = [_loss_weight(one, index, is_empty=is_empty) for index, one in enumerate(outputs)]
            pairs = [(o, w) for o, w in zip(outputs, self._weights, strict=True) if w is not None]
            if not pairs:
                raise SubjectError(
                    "cannot diagnose training: no output requires a gradient; call model.requires_grad_(True), let "
                    "forward run without no_grad or detach, or diagnose inference (--mode inference)"
                )
            torch.autograd.backward([output for output, _ in pairs], [weight for _, weight in pairs])
        return outputs

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        output = self.run(*args, **kwargs)
        if type(output) is torch.Tensor:  # the shortest way: the call is timed
            return [output]
        tensors = tensors_of(output)
        if not tensors:
            kind = type(output).__name__
            if isinstance(output, types.CoroutineType):
                output.close()
            raise SubjectError(
                f"cannot diagnose the model: its output ({kind}) holds no tensor, expected at least one; "
                "return the tensors"
            )
        return tensors

    def _clear_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.mode == "training":
            for tensor in (*self._parameters, *input_tensors(args, kwargs)):
                tensor.grad = None

    def _take_gradients(self, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies and frees the gradients: the next replay of a CUDA graph overwrites the originals."""
        if self.mode != "training":
            return {}
        inputs = [(f"input {index}", tensor) for index, tensor in enumerate(tensors)]
        taken = {}
        for name, tensor in (*self.module.named_parameters(), *inputs):
            if tensor.grad is not None:
                taken[name] = clone_tensor(tensor.grad.detach())
                tensor.grad = None
        return taken


@contextlib.contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Restores a module's parameters and buffers, and their values, after a block."""
    tables = [table for part in module.modules() for table in (part._parameters, part._buffers)]
    held = [dict(table) for table in tables]
    values = [(tensor, tensor.detach().clone()) for one in held for tensor in one.values() if tensor is not None]
    try:
        yield
    finally:
        for table, before in zip(tables, held, strict=True):
            table.update(before)
        with torch.no_grad():
            for tensor, value in values:
                with contextlib.suppress(RuntimeError):  # elements that share memory, as in an expanded buffer
                    tensor.copy_(value)


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Lists the tensors in a model's output, in order, also inside tuples, lists, dicts, dataclasses and the like."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, Mapping):
            found += tensors_of(list(leaf.values()))
        elif isinstance(leaf, types.SimpleNamespace):
            found += tensors_of(list(vars(leaf).values()))
        elif dataclasses.is_dataclass(leaf):
            found += tensors_of([getattr(leaf, part.name) for part in dataclasses.fields(leaf)])
    return found


def _loss_weight(output: torch.Tensor, index: int, *, is_empty: bool) -> torch.Tensor | None:
    """
    Makes the loss's gradient for one output; None if the output takes no gradient.

    The gradient depends only on the output's index and shape, so it is the same in every configuration. Its values are
    multiples of 1/8 from -2 to 2 without 0. Floating-point types of 16 bits and more hold them exactly, so the
    float64 reference starts from the same values. A scalar output counts as the loss itself: its gradient is 1.

    Args:
        is_empty: Whether the gradient gets no values, because nothing is computed.
    """
    if not output.requires_grad or output.layout != torch.strided:
        return None
    weight = torch.empty_like(output, requires_grad=False)  # with the output's strides
    if is_empty:
        return weight
    if output.dim() == 0:
        return weight.fill_(1)
    generator = torch.Generator().manual_seed(1000 + index)
    # Single bytes, so that these two tensors take little memory.
    eighths = torch.randint(1, 17, output.shape, generator=generator, device="cpu", dtype=torch.int8)
    eighths *= torch.randint(0, 2, output.shape, generator=generator, device="cpu", dtype=torch.int8) * 2 - 1
    return weight.copy_(eighths).div_(8)
