"""
What a model computes, and how exactly: its outputs and gradients in eager mode, and in float64 where that runs.

Faces doctor; imports measure's equivalence, rehearsal, step, memory and weights, records and errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from layoutdoctor.errors import first_line
from layoutdoctor.measure.copies import copy_model
from layoutdoctor.measure.equivalence import ReferenceTensor, named, reference_tensor, why_random
from layoutdoctor.measure.memory import Need, out_of_memory, release_memory, why_too_little
from layoutdoctor.measure.rehearsal import in_eager_mode
from layoutdoctor.measure.step import FIRST_CALL_SEED, Step, tensors_of
from layoutdoctor.measure.weights import weights_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.layout import Layout
    from layoutdoctor.measure.rehearsal import Rehearsal
    from layoutdoctor.measure.step import StepResults
    from layoutdoctor.records import Mode
    from layoutdoctor.subjects.subject import LoadedSubject


@dataclass(frozen=True)
class Reference:
    """
    What the model computes, and how exactly.

    Attributes:
        name: ``float64``, or ``eager float32`` and the like where float64 did not run.
        tensors: Outputs and gradients by name.
        mode: Of the runs.
        output_layouts: Eager's, on the caller's own input.
        random: Why two runs of the model differ; None where they do not.
        why_not_exact: Why float64 did not run; None where it did.
        terms: For an output that is a sum or a mean: the same of its terms' magnitudes, the largest. Where the terms
            cancel, rounding is of their size, not of the output's.
        notes: What the reader should know.
    """

    name: str
    tensors: dict[str, ReferenceTensor]
    mode: Mode
    output_layouts: tuple[Layout, ...]
    random: str | None = None
    why_not_exact: str | None = None
    terms: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _SumsOfTerms(TorchDispatchMode):
    """
    Remembers, for every sum and mean that runs, how large its terms are.

    Attributes:
        found: The sum or mean of magnitudes, the largest, by the result's identity; with the result, which stays alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[torch.Tensor, float]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation as it is, and a sum or mean once more on magnitudes."""
        del types
        keywords = kwargs or {}
        result = function(*args, **keywords)
        is_sum = str(function).split(".")[1] in ("sum", "mean") and isinstance(result, torch.Tensor)
        if is_sum and args[0].is_floating_point() and args[0].numel():
            self.found[id(result)] = (result, float(function(args[0].abs(), *args[1:], **keywords).max()))
        return result


def compute_reference(subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal | None = None) -> Reference:
    """
    Runs the model in eager on copies: in its own dtype, once more with another seed, and in float64.

    Args:
        subject: What was loaded; it is not changed.
        mode: ``inference`` or ``training``.
        rehearsal: What the first eager call showed; None where there was none.

    Raises:
        SubjectError: The model raised, though its first run did not.
    """
    with in_eager_mode(subject):
        results = _run(subject, mode)
        layouts = results.output_layouts
        eager = _on_host(named(results))
        del results
        random = why_random(eager, named(_run(subject, mode, seed=FIRST_CALL_SEED + 1)))
    problem = shortage = _why_no_room(subject, rehearsal)
    notes: tuple[str, ...] = ()
    terms: dict[str, float] = {}
    exact = eager
    if problem is None:
        try:
            exact = _on_host(named(_run_in_float64(subject, mode, terms)))
            problem = None if _shapes(exact) == _shapes(eager) else "it gives other outputs in float64"
        except (Exception, SystemExit) as error:  # what a model does with float64 is not known here
            shortage = out_of_memory(error)
            problem = shortage or first_line(error)
    if shortage is not None:
        notes = (f"the outputs were compared with eager's, not with float64's: {problem}",)
        release_memory()
    if random is not None or problem is not None:
        exact = eager  # another dtype draws other random numbers
    name = "float64" if exact is not eager else f"eager {_floating_dtype(eager)}"
    return Reference(name, _reference_tensors(exact, eager), mode, layouts, random, problem, terms, notes)


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _why_no_room(subject: LoadedSubject, rehearsal: Rehearsal | None) -> str | None:
    """Why a run in float64 does not fit into the memory; None where it does, or where nobody knows."""
    if rehearsal is None:
        return None
    weights = weights_of(subject.model)
    floating = [tensor for tensor in weights if tensor.is_floating_point()]
    wider = 8 / min((tensor.element_size() for tensor in floating), default=8)
    need = Need(
        (
            ("weights in float64", 8 * sum(tensor.numel() for tensor in floating)),
            ("activations in float64", int(wider * rehearsal.shared.activation_bytes)),
        )
    )
    problem = why_too_little(need, rehearsal.shared.device)
    return None if problem is None else f"float64 needs {problem}"


def _reference_tensors(exact: dict[str, torch.Tensor], eager: dict[str, torch.Tensor]) -> dict[str, ReferenceTensor]:
    """The dicts are emptied on the way, so that a tensor is let go of once what is needed of it is known."""
    names = list(exact)
    made: dict[str, ReferenceTensor] = {}
    for name in names:
        by_eager = eager[name]
        made[name] = reference_tensor(name, exact[name], by_eager)
        exact.pop(name)
        eager.pop(name, None)
    return made


def _run(subject: LoadedSubject, mode: Mode, *, seed: int = FIRST_CALL_SEED) -> StepResults:
    copied = copy_model(subject.model)
    copied.set_mode(mode)
    return Step(copied.run, copied.module, subject.args, subject.kwargs, mode, first_seed=seed).results()


def _run_in_float64(subject: LoadedSubject, mode: Mode, terms: dict[str, float]) -> StepResults:
    copied = copy_model(subject.model, _double_parameter)
    copied.set_mode(mode)
    if copied.module is not None:
        copied.module.double()  # the buffers
    args, kwargs = pytree.tree_map(_as_double, (subject.args, subject.kwargs))
    return Step(_noting_terms(copied.run, terms), copied.module, args, kwargs, mode).results()


def _double_parameter(tensor: torch.Tensor) -> torch.Tensor | None:
    """Converted when it is copied: a copy in its own dtype beside that in float64 is not needed."""
    if type(tensor) is not nn.Parameter or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return None
    return nn.Parameter(tensor.detach().double(), tensor.requires_grad)


def _noting_terms(run: Callable[..., Any], terms: dict[str, float]) -> Callable[..., Any]:
    """The model, which notes how large the terms are of those outputs that are sums or means."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _SumsOfTerms() as sums:
            output = run(*args, **kwargs)
        for index, tensor in enumerate(tensors_of(output)):
            if id(tensor) in sums.found:
                terms[f"output {index}"] = sums.found[id(tensor)][1]
        return output

    return call


def _as_double(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf.detach().double().requires_grad_(leaf.requires_grad)


def _on_host(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """On a GPU the memory is what the model needs; the host has some left."""
    return {name: tensor if tensor.device.type == "cpu" else tensor.cpu() for name, tensor in tensors.items()}


def _floating_dtype(tensors: dict[str, torch.Tensor]) -> str:
    dtypes = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    return str(dtypes[0] if dtypes else next(iter(tensors.values())).dtype).removeprefix("torch.")
