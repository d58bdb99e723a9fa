"""
Checks whether a configuration computes what the model computes, by relative root mean square errors.

The reference is a more exact run of the model. The error of eager mode in the model's dtype is the yardstick for the
allowed error, as in torch's accuracy check (``torch._dynamo.utils.same``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from layoutdoctor.diagnosis import Equivalence, Layout
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from os import PathLike

# Measurements behind these values: docs/measuring.md. All are relative root mean square errors, or factors for them.
EAGER_FACTOR = 10.0
LARGEST_TOLERANCE = 0.5
OUTPUT_FLOOR = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
GRADIENT_FLOOR = {torch.float64: 1e-5, torch.float32: 0.2, torch.float16: 0.2, torch.bfloat16: 0.2}
TF32_FLOOR = 1e-2
FLOOR_FACTOR_WITHOUT_YARDSTICK = 10.0
LARGEST_EAGER_ERROR = {"output": 0.3, "gradient": 0.1}
"""Largest error of eager mode itself at which a comparison can still distinguish a right tensor from a wrong one."""
SMALLEST_SIZE = 0.01
"""
Least size by which the error of a gradient is divided, as a share of the largest gradient of its module. Without this
limit, a bias before a batch norm would fail: its gradient consists of rounding errors.
"""
CANCELLED_FACTOR = 1000.0
"""If the terms of a sum cancel and no digit is right, the error may be this many times eager's own error."""

MOST_COMPARED = 1 << 26
"""Largest number of compared elements of a tensor: more would take minutes to move and change the error little."""
_PIECE = 1 << 22
"""Number of elements compared at once; each takes about forty bytes of temporary memory."""


class Part(NamedTuple):
    """
    The compared elements of a tensor: all, or every k-th element in row-major order.

    Attributes:
        shape: Shape of the whole tensor.
        step: The number k; 1 for all elements.
    """

    values: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype
    step: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Part:
        """Selects the elements. Step and sizes have no common divisor, so that every index of each dimension occurs."""
        values = _dense(tensor)
        step = math.ceil(values.numel() / MOST_COMPARED) or 1
        while any(math.gcd(step, size) > 1 for size in values.shape):
            step += 1
        if step > 1:
            values = values.reshape(-1)[::step].clone()
        return cls(values, tensor.shape, tensor.dtype, step)

    def cpu(self) -> Part:
        """Copies the values to main memory."""
        return self._replace(values=self.values.cpu())


class ReferenceTensor(NamedTuple):
    """
    The reference values of one output or gradient.

    Attributes:
        exact: Values of the ``Part``, in main memory. Outputs have the reference's dtype. Gradients have float32, or
            float64 if the model computes in float64.
        eager: Eager's values in the model's dtype. They are kept for integers and booleans, and if eager or the
            reference has NaN or infinity; None otherwise.
        eager_error: Root mean square of eager's error.
        size: Root mean square of the exact values.
    """

    exact: torch.Tensor
    eager: torch.Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    eager_error: float
    size: float


@dataclass(frozen=True)
class StepResults:
    """
    The results of one iteration.

    Attributes:
        outputs: Tensors of the model's output, in order, detached, with their strides.
        gradients: Gradients by the parameter's name, or ``input 0`` for the first input; empty in inference.
    """

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    output_layouts: tuple[Layout, ...]


@dataclass(frozen=True)
class Reference:
    """
    The reference outputs and gradients of the model, and their exactness.

    Attributes:
        name: Dtype of the reference, such as ``float64``; ``eager bfloat16`` if eager mode in this dtype is the
            reference.
        output_layouts: Layouts of eager's outputs for the caller's own inputs.
        may_use_tf32: Whether a float32 model may compute with the precision of TF32.
        has_yardstick: Whether eager's own error is known, because eager is not the reference.
        random: Text that says which tensor differs between two eager runs; empty if all agree within the tolerances.
        why_not_exact: Reason why the more exact run could not be used; empty if it was used, or not tried.
    """

    name: str
    tensors: dict[str, ReferenceTensor]
    output_layouts: tuple[Layout, ...] = ()
    may_use_tf32: bool = False
    random: str = ""
    why_not_exact: str = ""
    notes: tuple[str, ...] = ()
    has_yardstick: bool = True

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a file that other processes can map into their memory."""
        torch.save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Reference:
        """Maps a file that ``save`` wrote; values are read from it when they are compared."""
        with torch.serialization.safe_globals([Reference, ReferenceTensor, Layout]):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


class _Compared(NamedTuple):
    """
    The comparison of one tensor of a configuration with the reference.

    Attributes:
        problem: A difference other than the error, such as another shape; empty without such a difference.
        error: Root mean square error, divided by the tensor's size, as are ``eager_error`` and ``tolerance``.
        tolerance: Largest allowed error; infinite if eager's own error is too large for a comparison.
    """

    name: str
    problem: str = ""
    error: float = 0.0
    eager_error: float = 0.0
    tolerance: float = 1.0
    largest_error: float | None = None

    @property
    def share(self) -> float:
        """The error divided by the tolerance; infinite with a problem. Above 1, the tensor is different."""
        return math.inf if self.problem else self.error / self.tolerance


def named(results: StepResults) -> dict[str, Part]:
    """Returns the compared parts of all results by name: ``output 0``, ``gradient of NAME``."""
    outputs = {f"output {index}": output for index, output in enumerate(results.outputs)}
    tensors = {**outputs, **{f"gradient of {name}": gradient for name, gradient in results.gradients.items()}}
    return {name: Part.of(tensor) for name, tensor in tensors.items()}


def reference_tensor(name: str, exactly: Part, by_eager: Part) -> ReferenceTensor:
    """Makes the reference of one tensor; both parts are equal if eager itself is the reference."""
    shape, dtype = by_eager.shape, by_eager.dtype
    exact, eager = exactly.values, by_eager.values
    if not eager.is_floating_point():
        return ReferenceTensor(exact.cpu(), eager.cpu(), shape, dtype, 0.0, 0.0)
    error, size, _, _ = _errors(eager, exact, eager)
    is_finite = all(bool((one.isfinite() & other.isfinite()).all()) for one, other in _pieces(exact, eager))
    if _kind(name) == "gradient" and eager.dtype != torch.float64:
        exact = exact.float()  # a gradient's tolerance is a million times this rounding error
    return ReferenceTensor(exact.cpu(), None if is_finite else eager.cpu(), shape, dtype, error, size)


def why_random(first: dict[str, Part], second: dict[str, Part]) -> str:
    """Explains why a model is random; an empty text if two runs with different seeds agree within the tolerances."""
    reference = Reference("the first run", {name: reference_tensor(name, one, one) for name, one in first.items()})
    different = [one.name for one in _compare_all(reference, second) if one.share > 1]
    return f"{different[0]} differs between two eager runs with different seeds" if different else ""


def check_equivalence(reference: Reference, results: StepResults) -> Equivalence:
    """
    Compares the results of a configuration's first call with the reference, tensor by tensor, on the results' device.

    The allowed relative error of a tensor is ``EAGER_FACTOR`` times eager's own error, but at least a floor for the
    dtype and at most ``LARGEST_TOLERANCE``. If the terms of a sum cancel, ``CANCELLED_FACTOR`` times eager's own error
    is allowed. Integers and booleans have to be equal. NaN is right where eager has NaN. Infinity is right where eager
    or the reference has it.

    Returns:
        Status ``not_checked`` if eager's own error is too large to compare any output, or if the model is random and
        this run drew other numbers than eager did.
    """
    found = named(results)
    compared = _compare_all(reference, found)
    known = [one for one in compared if one.tolerance < math.inf]
    worst = max(known or compared, key=lambda one: one.share)
    has_figures = worst.largest_error is not None
    kinds = {_kind(one.name) for one in known}
    status: Literal["equal", "different", "not_checked"] = "equal" if "output" in kinds else "not_checked"
    if worst.share > 1:
        status = "not_checked" if reference.random else "different"
    return Equivalence(
        status=status,
        max_abs_error=worst.largest_error,
        relative_error=worst.error if has_figures else None,
        eager_relative_error=worst.eager_error if has_figures and reference.has_yardstick else None,
        tolerance=worst.tolerance if has_figures and worst.tolerance < math.inf else None,
        reference=reference.name,
        detail=_detail(worst, compared, reference, max((part.step for part in found.values()), default=1)),
        gradients_checked="gradient" in kinds,
        output_layouts=results.output_layouts,
        output_layouts_differ=_formats(results.output_layouts) != _formats(reference.output_layouts),
    )


def _formats(layouts: tuple[Layout, ...]) -> list[frozenset[str]]:
    return [frozenset(layout.memory_formats) for layout in layouts]


def _detail(worst: _Compared, compared: list[_Compared], reference: Reference, step: int) -> str:
    if worst.share > 1 and reference.random:
        return f"the model is random: {reference.random}, and this configuration drew other numbers"
    unknown = [one.eager_error for one in compared if one.tolerance == math.inf]
    own = f", eager's own {worst.eager_error:.2g}" if reference.has_yardstick else ""
    figures = f"relative error {worst.error:.2g}, allowed {worst.tolerance:.2g}{own}"
    figures = f"{worst.name}: {worst.problem or figures}"
    text = f"{count_of(len(compared) - len(unknown), 'tensor')} compared"
    if step > 1:
        text += f" (1 in {step} elements of the largest)"
    if worst.share > 1:
        text = figures
    elif worst.error and worst.tolerance < math.inf:
        text += f"; closest to its tolerance: {figures}"
    if unknown:
        count = count_of(len(unknown), "tensor")
        text += f"; {count} not compared: eager's own relative error is up to {max(unknown):.2g}"
    if reference.why_not_exact:
        text += f"; eager itself is the reference: {reference.why_not_exact}"
    return text


def _kind(name: str) -> str:
    return "gradient" if name.startswith("gradient of ") else "output"


def _module_of(name: str) -> str | None:
    """Returns the module of a parameter's gradient, by the gradient's name; None for other tensors."""
    is_of_parameter = _kind(name) == "gradient" and not name.startswith("gradient of input ")
    return name.rpartition(".")[0] if is_of_parameter else None


def _compare_all(reference: Reference, found: dict[str, Part]) -> list[_Compared]:
    largest: dict[str | None, float] = {}  # largest size of a parameter's gradient, by module
    for name, wanted in reference.tensors.items():
        if (module := _module_of(name)) is not None:
            largest[module] = max(largest.get(module, 0.0), wanted.size)
    compared = []
    for name, wanted in reference.tensors.items():
        size = max(wanted.size, SMALLEST_SIZE * largest.get(_module_of(name), 0.0))
        compared.append(_compare(name, found.get(name), wanted, size, reference))
    extra = sorted(found.keys() - reference.tensors.keys())
    return [*compared, *(_Compared(name, "absent in eager mode") for name in extra)]


def _compare(name: str, part: Part | None, wanted: ReferenceTensor, size: float, reference: Reference) -> _Compared:
    if part is None:
        return _Compared(name, "present in eager mode, absent in this configuration")
    if part.shape != wanted.shape:
        return _Compared(name, f"shape {list(part.shape)}, eager gives {list(wanted.shape)}")
    if part.dtype != wanted.dtype:
        return _Compared(name, f"dtype {part.dtype}, eager gives {wanted.dtype}")
    found = part.values
    own = wanted.exact if wanted.eager is None else wanted.eager
    if not found.is_floating_point():
        count = sum(int((one != other).sum()) for one, other in _pieces(found, own))
        values = f"{found.numel()} {str(found.dtype).removeprefix('torch.')} values"
        return _Compared(name, f"{count} of {values} differ" if count else "")
    mean, _, largest, count = _errors(found, wanted.exact, own)
    if count:
        where = f"{count} of {found.numel()} values"
        return _Compared(name, f"{where} are NaN or infinite, or differ where eager has NaN or infinity")
    if wanted.eager_error > 10 * size or size == 0:  # the terms cancel: only rounding errors are left
        size = max(wanted.eager_error, torch.finfo(found.dtype).eps / CANCELLED_FACTOR)
        return _Compared(name, "", mean / size, wanted.eager_error / size, CANCELLED_FACTOR, largest)
    eager_error = wanted.eager_error / size
    tolerance = max(_floor(name, found.dtype, reference), min(EAGER_FACTOR * eager_error, LARGEST_TOLERANCE))
    if eager_error > LARGEST_EAGER_ERROR[_kind(name)]:
        tolerance = math.inf
    return _Compared(name, "", mean / size, eager_error, tolerance, largest)


def _floor(name: str, dtype: torch.dtype, reference: Reference) -> float:
    floors = GRADIENT_FLOOR if _kind(name) == "gradient" else OUTPUT_FLOOR
    floor = floors.get(dtype, max(floors.values()))
    if dtype == torch.float32 and reference.may_use_tf32:
        floor = max(floor, TF32_FLOOR)
    return min(floor if reference.has_yardstick else FLOOR_FACTOR_WITHOUT_YARDSTICK * floor, LARGEST_TOLERANCE)


def _errors(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor) -> tuple[float, float, float, int]:
    """
    Compares values with the exact ones.

    Returns:
        Root mean square of the error, root mean square of the exact values, largest error, and the number of wrong
        values at places where one of the three tensors has NaN or infinity.
    """
    squares, sizes, largest, wrong = 0.0, 0.0, 0.0, 0
    for one, right, own in _pieces(found, exact, eager):
        finite = right.isfinite() & own.isfinite()
        # At places that are not finite, eager's value is right. The reference's value is right, too, unless it is NaN:
        # eager's dtype may be too small for it.
        close = torch.isclose(one.double(), right.double(), rtol=TF32_FLOOR, atol=0.0)
        wrong += int(torch.where(finite, ~one.isfinite(), ~(close | (one == own) | (one.isnan() & own.isnan()))).sum())
        error = torch.where(finite, one.double() - right.double(), 0.0)
        squares += float(error.square().sum())
        sizes += float(torch.where(finite, right.double(), 0.0).square().sum())
        largest = max(largest, float(error.abs().max()) if error.numel() else 0.0)
    count = max(found.numel(), 1)
    return math.sqrt(squares / count), math.sqrt(sizes / count), largest, wrong


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().as_subclass(torch.Tensor)
    dense = plain if plain.layout == torch.strided else plain.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _pieces(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Yields pieces of dense tensors of equal size, on the GPU if one of the tensors is there, else on the CPU."""
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), torch.device("cpu"))
    for pieces in zip(*(tensor.reshape(-1).split(_PIECE) for tensor in tensors), strict=True):
        yield [piece.to(device) for piece in pieces]
