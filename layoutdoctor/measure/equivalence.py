"""
Whether a configuration computes what the model computes: outputs and gradients against a float64 eager reference.

Tensors are compared piece by piece: on the way to a difference nothing as large as they are is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from layoutdoctor.diagnosis.records import Equivalence
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Mode

EAGER_ERROR_FACTOR = 10.0
"""How many times eager's own rounding error another order of the same additions may make."""

PERTURBED_FACTOR = 3.0
"""How many times what a gradient changed by in a few calls with perturbed weights it may in one more."""

# Some eighty roundings (80 x 2**-23 for float32) of the largest value: what is left where eager is exact by luck.
RELATIVE_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}

# A gradient is no continuous function of the activations: where one lies within rounding of the kink of a ReLU, or two
# tie in a max pooling, another order of additions sends the gradient elsewhere. One such flip among 800,000 activations
# changed a weight's gradient by 0.5 % of the largest. In front of batch norms over few values a flip changes all that
# lies before it, by a third of the largest: how far that goes, calls with perturbed weights tell.
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
        error_of_eager: Largest difference of eager from the exact values, where both are finite.
        largest: Largest magnitude of the exact values; 0 for whole numbers.
        perturbed: Of a gradient: the largest difference of eager from the exact values where weights are off by a few
            roundings; 0 where nobody tried.
    """

    exact: torch.Tensor
    eager: torch.Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    error_of_eager: float
    largest: float
    perturbed: float = 0.0


@dataclass(frozen=True)
class StepResults:
    """
    What one iteration gave.

    Attributes:
        outputs: Every tensor of the output, in order, detached, with the strides the model gave them.
        gradients: Of each parameter by its name, of each input that requires one as ``input 0``; none in inference.
    """

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    output_layouts: tuple[Layout, ...]


@dataclass(frozen=True)
class Reference:
    """
    What the model computes, and how exactly.

    Attributes:
        name: ``float64``, or ``eager float32`` and the like where float64 did not run.
        output_layouts: Eager's, on the caller's own input.
        random: Why two runs of the model differ; None where they do not.
        why_not_exact: Why float64 did not run; None where it did.
        terms: For an output that is a sum or a mean: the same of its terms' magnitudes, the largest. Where the terms
            cancel, rounding is of their size, not of the output's.
    """

    name: str
    tensors: dict[str, ReferenceTensor]
    mode: Mode
    output_layouts: tuple[Layout, ...]
    random: str | None = None
    why_not_exact: str | None = None
    terms: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Difference(NamedTuple):
    """How far one tensor is from the reference; ``reason`` where no figure can say it, ``scale`` of what it holds."""

    name: str
    error: float
    tolerance: float
    rule: str
    reason: str | None = None
    scale: float | None = None

    @property
    def share(self) -> float:
        """Of the tolerance that is used up; above 1 is different."""
        if self.reason is not None or self.error != self.error:
            return float("inf")
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance > 0 else float("inf")


def reference_tensor(name: str, exact: torch.Tensor, eager: torch.Tensor) -> ReferenceTensor:
    """
    What later results are compared with.

    Args:
        exact: The reference's, of the same shape.
        eager: The same by eager; the same tensor where eager is the reference.
    """
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


def named(results: StepResults) -> dict[str, torch.Tensor]:
    """Outputs as ``output 0``, gradients as ``gradient of NAME``."""
    outputs = {f"output {index}": output for index, output in enumerate(results.outputs)}
    return {**outputs, **{f"gradient of {name}": gradient for name, gradient in results.gradients.items()}}


def with_perturbed(wanted: ReferenceTensor, perturbed: torch.Tensor) -> ReferenceTensor:
    """The same gradient, which may differ as eager's does that had perturbed weights."""
    error = 0.0
    for one, exact in _pieces(_dense(perturbed), wanted.exact):
        error = max(error, _largest_error(one, exact, torch.isfinite(one) & torch.isfinite(exact)))
    return replace(wanted, perturbed=max(wanted.perturbed, error))


def why_random(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> str | None:
    """Why a model is random; None where two runs with different seeds give the same."""
    for name, tensor in first.items():
        if _compare(name, second.get(name), reference_tensor(name, tensor, tensor), None).share > 1:
            return f"{name} differs between two eager runs with different seeds"
    return None


def check_equivalence(reference: Reference, results: StepResults) -> Equivalence:
    """
    Compares what a configuration's first call gave with the reference, tensor by tensor.

    Each tensor may differ by 10 times eager's own error there, or by a tolerance of its dtype times its largest value,
    whichever is more; a gradient's largest value is that among its module's parameters, and it may differ by 3 times
    what perturbed weights make of it. Integers and booleans have to be equal. NaN and infinity count as equal where
    eager has the same at the same place.

    Returns:
        ``not_checked`` where the model is random and this run drew other numbers than eager.
    """
    found, scales = named(results), _scales(reference)
    differences = [_compare(name, found.get(name), wanted, scales[name]) for name, wanted in reference.tensors.items()]
    extra = sorted(found.keys() - reference.tensors.keys())
    differences += [_Difference(name, 0.0, 0.0, "", "eager does not give it") for name in extra]
    worst = max(differences, key=lambda difference: difference.share)
    has_figures = worst.reason is None
    return Equivalence(
        status=_status(worst, reference),
        max_abs_error=worst.error if has_figures and worst.error == worst.error else None,
        tolerance=worst.tolerance if has_figures else None,
        largest_value=worst.scale if has_figures else None,
        reference=reference.name,
        detail=_detail(worst, len(differences), reference) + _of_no_gradient(reference, scales),
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


def _of_no_gradient(reference: Reference, scales: dict[str, float]) -> str:
    """What rounding alone changes as much as a wrong gradient would."""
    sensitive = [name for name, one in reference.tensors.items() if PERTURBED_FACTOR * one.perturbed > scales[name] > 0]
    return f"; too sensitive to rounding to be told: {count_of(len(sensitive), 'gradient')}" if sensitive else ""


def _scales(reference: Reference) -> dict[str, float]:
    """
    The largest value each tolerance refers to: an output's own; for a gradient the largest of its module's parameters.

    The gradient of a bias in front of a batch norm is zero but for rounding, and that rounding is of its weight's size;
    a sum whose terms cancel is zero but for rounding of their size.
    """
    by_module: dict[str, float] = {}
    modules = {name: name.rpartition(".")[0] if name.startswith("gradient of ") else name for name in reference.tensors}
    for name, module in modules.items():
        largest = max(reference.tensors[name].largest, reference.terms.get(name, 0.0))
        by_module[module] = max(by_module.get(module, 0.0), largest)
    return {name: by_module[module] for name, module in modules.items()}


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
    by_eager, by_perturbed = EAGER_ERROR_FACTOR * wanted.error_of_eager, PERTURBED_FACTOR * wanted.perturbed
    tolerance = max(by_eager, by_perturbed, relative * scale)
    error, wrong, lost = 0.0, 0, 0
    for one, exact, eager in _pieces(found, wanted.exact, wanted.exact if wanted.eager is None else wanted.eager):
        finite = torch.isfinite(eager) & torch.isfinite(exact)
        # Where eager has NaN or infinity, the same is right, and so is a number of the reference that it cannot hold.
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
    perturbed = f", {PERTURBED_FACTOR:.0f} x that with perturbed weights ({wanted.perturbed:.2g})"
    rule = (
        f"the larg{'est' if wanted.perturbed else 'er'} of {EAGER_ERROR_FACTOR:.0f} x eager's own error "
        f"({wanted.error_of_eager:.2g}){perturbed if wanted.perturbed else ''} and {relative:.0e} x the largest value "
        f"({scale:.3g})"
    )
    return _Difference(name, error, tolerance, rule, scale=scale)


def _largest_error(found: torch.Tensor, exact: torch.Tensor, where: torch.Tensor) -> float:
    errors = (found.double() - exact.double()).abs()[where]
    return float(errors.max()) if errors.numel() else 0.0


def _pieces(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Dense tensors of one shape piece by piece, on the device of the first if that knows float64, else on the host."""
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
