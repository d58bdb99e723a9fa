"""
Whether a configuration computes what the model computes: outputs and gradients against a float64 eager reference.

Faces doctor; imports measure's step, copies, memory and weights, records and errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from layoutdoctor.errors import first_line
from layoutdoctor.measure.copies import copy_model
from layoutdoctor.measure.memory import Need, release_memory, why_too_little
from layoutdoctor.measure.step import FIRST_CALL_SEED, Step, in_eager_mode, tensors_of
from layoutdoctor.measure.weights import weights_of
from layoutdoctor.records import Equivalence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.layout import Layout
    from layoutdoctor.measure.step import Rehearsal, StepResults
    from layoutdoctor.records import Mode
    from layoutdoctor.subjects.subject import LoadedSubject

EAGER_ERROR_FACTOR = 10.0
"""How many times eager's own rounding error another order of the same additions may make."""

# Some eighty roundings (80 x 2**-23 for float32) of the largest value: what is left where eager is exact by luck.
RELATIVE_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}

# A gradient is no continuous function of the activations: where one lies within rounding of the kink of a ReLU, or two
# tie in a max pooling, another order of additions sends the gradient elsewhere. One such flip among 800,000 activations
# changed a weight's gradient by 0.5 % of the largest; a wrong gradient is off by much more.
GRADIENT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-2, torch.float16: 5e-2, torch.bfloat16: 1e-1}


_PIECE = 1 << 22
"""Elements compared at once: what is computed on the way to a difference takes some forty bytes each."""


@dataclass(frozen=True)
class ReferenceTensor:
    """
    One output or gradient as it should be.

    Attributes:
        exact: Its values, on the host: outputs in the reference's dtype, gradients in float32 at most.
        eager: The same by eager in the caller's own dtype, where the error does not say all: whole numbers, and where
            one of both has NaN or infinity; None elsewhere.
        shape: Of the tensor as eager gave it.
        dtype: Of the tensor as eager gave it.
        error_of_eager: Largest difference of eager from the exact values, where both are finite.
        largest: Largest magnitude of the exact values; 0 for whole numbers.
    """

    exact: torch.Tensor
    eager: torch.Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    error_of_eager: float
    largest: float


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


class _Difference(NamedTuple):
    """How far one tensor is from the reference; ``reason`` where no figure can say it."""

    name: str
    error: float
    tolerance: float
    rule: str
    reason: str | None = None

    @property
    def share(self) -> float:
        """Of the tolerance that is used up; above 1 is different."""
        if self.reason is not None or self.error != self.error:
            return float("inf")
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance > 0 else float("inf")


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
        eager = _on_host(_named(results))
        del results
        random = _why_random(eager, _named(_run(subject, mode, seed=FIRST_CALL_SEED + 1)))
    problem = _why_no_room(subject, rehearsal)
    notes = () if problem is None else (f"the outputs were compared with eager's, not with float64: {problem}",)
    terms: dict[str, float] = {}
    exact = eager
    if problem is None:
        try:
            exact = _on_host(_named(_run_in_float64(subject, mode, terms)))
            problem = None if exact.keys() == eager.keys() else "it gives other outputs in float64"
        except (Exception, SystemExit) as error:  # what a model does with float64 is not known here
            problem = first_line(error)
    if random is not None or problem is not None:
        exact = eager  # another dtype draws other random numbers
    name = "float64" if exact is not eager else f"eager {_floating_dtype(eager)}"
    release_memory()
    return Reference(name, _reference_tensors(exact, eager), mode, layouts, random, problem, terms, notes)


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
        made[name] = _reference_tensor(name, exact[name], by_eager)
        exact.pop(name)
        eager.pop(name, None)
    return made


def _reference_tensor(name: str, exact: torch.Tensor, eager: torch.Tensor) -> ReferenceTensor:
    shape, dtype = eager.shape, eager.dtype
    same = exact is eager
    exact, eager = _dense(exact), _dense(eager)
    error, largest, all_finite = 0.0, 0.0, eager.is_floating_point()
    if all_finite:
        for one, other in _pieces(exact, eager):
            finite = torch.isfinite(one) & torch.isfinite(other)
            all_finite = all_finite and bool(finite.all())
            error = max(error, 0.0 if same else _largest_error(other, one, finite))
            largest = max(largest, _largest(one))
    if name.startswith("gradient of ") and exact.dtype == torch.float64 and eager.dtype != torch.float64:
        exact = exact.float()  # a gradient's tolerance is 300,000 times what this rounds away
    return ReferenceTensor(exact, None if all_finite else eager, shape, dtype, error, largest)


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


def _named(results: StepResults) -> dict[str, torch.Tensor]:
    """Outputs as ``output 0``, gradients as ``gradient of NAME``."""
    outputs = {f"output {index}": output for index, output in enumerate(results.outputs)}
    return {**outputs, **{f"gradient of {name}": gradient for name, gradient in results.gradients.items()}}


def _floating_dtype(tensors: dict[str, torch.Tensor]) -> str:
    dtypes = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    return str(dtypes[0] if dtypes else next(iter(tensors.values())).dtype).removeprefix("torch.")


def _why_random(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> str | None:
    for name, tensor in first.items():
        if _compare(name, second.get(name), _reference_tensor(name, tensor, tensor), None).share > 1:
            return f"{name} differs between two eager runs with different seeds"
    return None


def check_equivalence(reference: Reference, results: StepResults) -> Equivalence:
    """
    Compares what a configuration's first call gave with the reference, tensor by tensor.

    Each tensor may differ by 10 times eager's own error there, or by a tolerance of its dtype times its largest value,
    whichever is more; a gradient's largest value is that among its module's parameters. Integers and booleans have to
    be equal. NaN and infinity count as equal where eager has the same at the same place.

    Args:
        reference: Made once by ``compute_reference``.
        results: Of the configuration's step.

    Returns:
        ``not_checked`` where the model is random and this run drew other numbers than eager.
    """
    found, scales = _named(results), _scales(reference)
    differences = [
        _compare(name, found.get(name), wanted, scales.get(name)) for name, wanted in reference.tensors.items()
    ]
    extra = sorted(found.keys() - reference.tensors.keys())
    differences += [_Difference(name, 0.0, 0.0, "", "eager does not give it") for name in extra]
    worst = max(differences, key=lambda difference: difference.share)
    has_figures = worst.reason is None
    return Equivalence(
        status=_status(worst, reference),
        max_abs_error=worst.error if has_figures and worst.error == worst.error else None,
        tolerance=worst.tolerance if has_figures else None,
        reference=reference.name,
        detail=_detail(worst, len(differences), reference),
        gradients_checked=any(name.startswith("gradient of ") for name in reference.tensors),
        output_layouts=results.output_layouts,
        output_layouts_differ=_formats(results.output_layouts) != _formats(reference.output_layouts),
    )


def _status(worst: _Difference, reference: Reference) -> Any:
    if worst.share <= 1:
        return "equal"
    return "different" if reference.random is None else "not_checked"


def _formats(layouts: tuple[Layout, ...]) -> list[frozenset[str]]:
    return [frozenset(layout.memory_formats) for layout in layouts]


def _detail(worst: _Difference, count: int, reference: Reference) -> str:
    if worst.share <= 1:
        tensors = "1 tensor" if count == 1 else f"{count} tensors"
        closest = f"; closest to its tolerance: {worst.name}, {worst.rule}" if worst.rule else ""
        text = f"{tensors} compared{closest}"
    elif reference.random is not None:
        return f"the model is random: {reference.random}, and this configuration drew other numbers"
    elif worst.reason is not None:
        text = f"{worst.name}: {worst.reason}"
    else:
        text = f"{worst.name} differs by {worst.error:.3g}, allowed {worst.tolerance:.3g}: {worst.rule}"
    if reference.why_not_exact is not None:
        text += f"; float64 could not be the reference: {reference.why_not_exact}"
    return text


def _scales(reference: Reference) -> dict[str, float]:
    """
    The largest value each tolerance refers to: an output's own, for a gradient the largest among its module's parameters.

    The gradient of a bias in front of a batch norm is zero but for rounding, and that rounding is of its weight's size;
    a sum whose terms cancel is zero but for rounding of their size.
    """
    by_module: dict[str, float] = {}
    for name, tensor in reference.tensors.items():
        module = name.rpartition(".")[0] if name.startswith("gradient of ") else name
        by_module[module] = max(by_module.get(module, 0.0), tensor.largest, reference.terms.get(name, 0.0))
    return {
        name: by_module[name.rpartition(".")[0] if name.startswith("gradient of ") else name]
        for name in reference.tensors
    }


def _largest(tensor: torch.Tensor) -> float:
    values = _dense(tensor)
    if not values.is_floating_point():
        return 0.0
    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _compare(name: str, found: torch.Tensor | None, wanted: ReferenceTensor, scale: float | None) -> _Difference:
    if found is None:
        return _Difference(name, 0.0, 0.0, "", "eager gives it, this configuration does not")
    if found.shape != wanted.shape:
        return _Difference(name, 0.0, 0.0, "", f"shape {list(found.shape)}, eager gives {list(wanted.shape)}")
    if found.dtype != wanted.dtype:
        return _Difference(name, 0.0, 0.0, "", f"dtype {found.dtype}, eager gives {wanted.dtype}")
    found = _dense(found)
    if not found.is_floating_point():
        assert wanted.eager is not None  # kept for all that is no floating-point number
        count = sum(int((one != other).sum()) for one, other in _pieces(found, wanted.eager))
        dtype = str(found.dtype).removeprefix("torch.")
        reason = f"{count} of {found.numel()} {dtype} values differ" if count else None
        return _Difference(name, 0.0, 0.0, "whole numbers have to be equal", reason)
    return _compare_floats(name, found, wanted, wanted.largest if scale is None else scale)


def _compare_floats(name: str, found: torch.Tensor, wanted: ReferenceTensor, scale: float) -> _Difference:
    allowed = GRADIENT_TOLERANCE if name.startswith("gradient of ") else RELATIVE_TOLERANCE
    relative = allowed.get(found.dtype, max(allowed.values()))
    tolerance = max(EAGER_ERROR_FACTOR * wanted.error_of_eager, relative * scale)
    error, wrong, lost = 0.0, 0, 0
    for one, exact, eager in _pieces(found, wanted.exact, wanted.exact if wanted.eager is None else wanted.eager):
        finite = torch.isfinite(eager) & torch.isfinite(exact)
        # Where eager has NaN or infinity, the same is right, and so is the reference's number that eager could not hold.
        same = (one == eager) | (one.isnan() & eager.isnan())
        close = (one.double() - exact.double()).abs() <= tolerance
        wrong += int((~finite & ~same & ~close).sum())
        lost += int((finite & ~torch.isfinite(one)).sum())
        largest = _largest_error(one, exact, finite)
        error = largest if largest != largest else max(error, largest)
    if wrong:
        return _Difference(name, 0.0, 0.0, "", f"{wrong} values differ where eager gives NaN or infinity")
    if lost:
        return _Difference(name, 0.0, 0.0, "", f"{lost} of {found.numel()} values are NaN or infinite, finite in eager")
    rule = (
        f"the larger of {EAGER_ERROR_FACTOR:.0f} x eager's own error ({wanted.error_of_eager:.2g}) and "
        f"{relative:.0e} x the largest value ({scale:.3g})"
    )
    return _Difference(name, error, tolerance, rule)


def _largest_error(found: torch.Tensor, exact: torch.Tensor, where: torch.Tensor) -> float:
    errors = (found.double() - exact.double()).abs()[where]
    return float(errors.max()) if errors.numel() else 0.0


def _pieces(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """
    Tensors of one shape piece by piece, on one device: that of the first where it knows float64, else the host.

    Args:
        tensors: Dense, of one shape, with any strides.
    """
    first = tensors[0]
    device = first.device if first.device.type in ("cpu", "cuda") else torch.device("cpu")
    if not first.dim() or first.numel() <= _PIECE:
        yield [tensor.to(device) for tensor in tensors]
        return
    longest = max(range(first.dim()), key=lambda dimension: first.shape[dimension])
    length = max(_PIECE * first.shape[longest] // first.numel(), 1)
    for start in range(0, first.shape[longest], length):
        count = min(length, first.shape[longest] - start)
        yield [tensor.narrow(longest, start, count).to(device) for tensor in tensors]
