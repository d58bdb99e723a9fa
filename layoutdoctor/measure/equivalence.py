"""
Whether a configuration computes what the model computes: relative root mean square errors beside a more exact run.

Eager's own error in the model's dtype is the yardstick, as in torch's accuracy check (``torch._dynamo.utils.same``).
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

# The numbers behind these are in docs/measuring.md. All are relative root mean square errors, or factors of them.
EAGER_FACTOR = 10.0
LARGEST_TOLERANCE = 0.5
OUTPUT_FLOOR = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
GRADIENT_FLOOR = {torch.float64: 1e-5, torch.float32: 0.2, torch.float16: 0.2, torch.bfloat16: 0.2}
TF32_FLOOR = 1e-2
FLOOR_FACTOR_WITHOUT_YARDSTICK = 10.0
LARGEST_EAGER_ERROR = {"output": 0.3, "gradient": 0.1}
"""If eager itself is further off, no comparison can tell a right tensor from a wrong one."""
SMALLEST_SIZE = 0.01
"""Of a gradient, beside the largest of its module: that of a bias in front of a batch norm is nothing but rounding."""
CANCELLED_FACTOR = 1000.0
"""Times eager's own error, if the terms of a sum cancel and no digit of eager's result is right."""

MOST_COMPARED = 1 << 26
"""Elements of one tensor: root mean squares are as good, and a reference of gigabytes takes minutes to move."""
_PIECE = 1 << 22
"""Elements compared at once; each takes some forty bytes meanwhile."""


class Part(NamedTuple):
    """
    What is compared of a tensor: all of it, or every k-th element in the order of its indices.

    Attributes:
        shape: Of the whole tensor.
        step: The k; 1 for all elements.
    """

    values: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype
    step: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Part:
        """The part of a tensor; of a larger one, elements at every index of each dimension."""
        values = _dense(tensor)
        step = math.ceil(values.numel() / MOST_COMPARED) or 1
        while any(math.gcd(step, size) > 1 for size in values.shape):
            step += 1
        if step > 1:
            values = values.reshape(-1)[::step].clone()
        return cls(values, tensor.shape, tensor.dtype, step)

    def cpu(self) -> Part:
        """The same in main memory."""
        return self._replace(values=self.values.cpu())


class ReferenceTensor(NamedTuple):
    """
    One output or gradient as it should be.

    Attributes:
        exact: Values of its ``Part``, on the host: outputs in the reference's dtype, gradients in float32 at most.
        eager: The same by eager in the model's dtype, for whole numbers and for NaN or infinity in one of both; else
            None.
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
    The tensors that one iteration gave.

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
    The outputs and gradients of the model, and how exact they are.

    Attributes:
        name: ``float64``; ``float32`` for half precision on a GPU; ``eager bfloat16`` and the like if eager itself is
            the reference.
        output_layouts: Eager's, on the caller's own input.
        may_use_tf32: Whether float32 may be computed with the precision of TF32.
        has_yardstick: Whether eager's own error is known, because eager is not the reference.
        random: Why two runs of the model differ; None if they do not.
        why_not_exact: Why eager itself is the reference; None if it is not, or need not be more exact.
    """

    name: str
    tensors: dict[str, ReferenceTensor]
    output_layouts: tuple[Layout, ...] = ()
    may_use_tf32: bool = False
    random: str | None = None
    why_not_exact: str | None = None
    notes: tuple[str, ...] = ()
    has_yardstick: bool = True

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a file that other processes can map into their memory."""
        torch.save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Reference:
        """Reads what ``save`` wrote, each value when it is compared."""
        with torch.serialization.safe_globals([Reference, ReferenceTensor, Layout]):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


class _Compared(NamedTuple):
    """
    One tensor of a configuration beside the reference.

    Attributes:
        problem: Why it differs, if no error says so.
        error: Relative to the tensor's size, as are ``eager_error`` and ``tolerance``.
        tolerance: Infinite if eager is too far off to tell.
    """

    name: str
    problem: str | None = None
    error: float = 0.0
    eager_error: float = 0.0
    tolerance: float = 1.0
    largest_error: float | None = None

    @property
    def share(self) -> float:
        """How much of the tolerance the error takes; above 1 is different."""
        return math.inf if self.problem else self.error / self.tolerance


def named(results: StepResults) -> dict[str, Part]:
    """Outputs as ``output 0``, gradients as ``gradient of NAME``."""
    outputs = {f"output {index}": output for index, output in enumerate(results.outputs)}
    tensors = {**outputs, **{f"gradient of {name}": gradient for name, gradient in results.gradients.items()}}
    return {name: Part.of(tensor) for name, tensor in tensors.items()}


def reference_tensor(name: str, exactly: Part, by_eager: Part) -> ReferenceTensor:
    """What later results are compared with; both are the same if eager is the reference."""
    shape, dtype = by_eager.shape, by_eager.dtype
    exact, eager = exactly.values, by_eager.values
    if not eager.is_floating_point():
        return ReferenceTensor(exact.cpu(), eager.cpu(), shape, dtype, 0.0, 0.0)
    error, size, _, _ = _errors(eager, exact, eager)
    is_finite = all(bool((one.isfinite() & other.isfinite()).all()) for one, other in _pieces(exact, eager))
    if _kind(name) == "gradient" and eager.dtype != torch.float64:
        exact = exact.float()  # a gradient's tolerance is a million times what this rounds away
    return ReferenceTensor(exact.cpu(), None if is_finite else eager.cpu(), shape, dtype, error, size)


def why_random(first: dict[str, Part], second: dict[str, Part]) -> str | None:
    """Why a model is random; None if two runs with different seeds give the same."""
    reference = Reference("the first run", {name: reference_tensor(name, one, one) for name, one in first.items()})
    different = [one.name for one in _compare_all(reference, second) if one.share > 1]
    return f"{different[0]} differs between two eager runs with different seeds" if different else None


def check_equivalence(reference: Reference, results: StepResults) -> Equivalence:
    """
    Compares what a configuration's first call gave with the reference, tensor by tensor, on the results' device.

    A tensor's relative error may be 10 times eager's own or a floor of its dtype, whichever is more, but no more than
    half of the values. Integers and booleans have to be equal, and NaN and infinity be eager's.

    Returns:
        ``not_checked`` if eager itself is too far off to tell, or if the model is random and this run drew other
        numbers than eager.
    """
    found = named(results)
    compared = _compare_all(reference, found)
    known = [one for one in compared if one.tolerance < math.inf]
    worst = max(known or compared, key=lambda one: one.share)
    has_figures = worst.largest_error is not None
    kinds = {_kind(one.name) for one in known}
    status: Literal["equal", "different", "not_checked"] = "equal" if "output" in kinds else "not_checked"
    if worst.share > 1:
        status = "different" if reference.random is None else "not_checked"
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
    if worst.share > 1 and reference.random is not None:
        return f"the model is random: {reference.random}, and this configuration drew other numbers"
    unknown = [one.eager_error for one in compared if one.tolerance == math.inf]
    own = f", eager's own {worst.eager_error:.2g}" if reference.has_yardstick else ""
    figures = f"relative error {worst.error:.2g}, allowed {worst.tolerance:.2g}{own}"
    figures = f"{worst.name}: {worst.problem or figures}"
    text = f"{count_of(len(compared) - len(unknown), 'tensor')} compared"
    if step > 1:
        text += f" (of the largest 1 of {step} elements)"
    if worst.share > 1:
        text = figures
    elif worst.error and worst.tolerance < math.inf:
        text += f"; closest to its tolerance: {figures}"
    if unknown:
        count = count_of(len(unknown), "tensor")
        text += f"; {count} not compared: eager's own relative error is up to {max(unknown):.2g}"
    if reference.why_not_exact is not None:
        text += f"; eager itself is the reference: {reference.why_not_exact}"
    return text


def _kind(name: str) -> str:
    return "gradient" if name.startswith("gradient of ") else "output"


def _compare_all(reference: Reference, found: dict[str, Part]) -> list[_Compared]:
    largest: dict[str, float] = {}  # of each module's gradients
    for name, wanted in reference.tensors.items():
        module = name.rpartition(".")[0]
        largest[module] = max(largest.get(module, 0.0), wanted.size if _kind(name) == "gradient" else 0.0)
    compared = []
    for name, wanted in reference.tensors.items():
        size = max(wanted.size, SMALLEST_SIZE * largest[name.rpartition(".")[0]])
        compared.append(_compare(name, found.get(name), wanted, size, reference))
    extra = sorted(found.keys() - reference.tensors.keys())
    return [*compared, *(_Compared(name, "eager does not give it") for name in extra)]


def _compare(name: str, part: Part | None, wanted: ReferenceTensor, size: float, reference: Reference) -> _Compared:
    if part is None:
        return _Compared(name, "eager gives it, this configuration does not")
    if part.shape != wanted.shape:
        return _Compared(name, f"shape {list(part.shape)}, eager gives {list(wanted.shape)}")
    if part.dtype != wanted.dtype:
        return _Compared(name, f"dtype {part.dtype}, eager gives {wanted.dtype}")
    found = part.values
    own = wanted.exact if wanted.eager is None else wanted.eager
    if not found.is_floating_point():
        count = sum(int((one != other).sum()) for one, other in _pieces(found, own))
        values = f"{found.numel()} {str(found.dtype).removeprefix('torch.')} values"
        return _Compared(name, f"{count} of {values} differ" if count else None)
    mean, _, largest, count = _errors(found, wanted.exact, own)
    if count:
        return _Compared(name, f"{count} of {found.numel()} values are NaN or infinite, or differ where eager's are")
    if wanted.eager_error > 10 * size or size == 0:  # the terms cancel: what is left is rounding
        size = max(wanted.eager_error, torch.finfo(found.dtype).eps / CANCELLED_FACTOR)
        return _Compared(name, None, mean / size, wanted.eager_error / size, CANCELLED_FACTOR, largest)
    eager_error = wanted.eager_error / size
    tolerance = max(_floor(name, found.dtype, reference), min(EAGER_FACTOR * eager_error, LARGEST_TOLERANCE))
    if eager_error > LARGEST_EAGER_ERROR[_kind(name)]:
        tolerance = math.inf
    return _Compared(name, None, mean / size, eager_error, tolerance, largest)


def _floor(name: str, dtype: torch.dtype, reference: Reference) -> float:
    floors = GRADIENT_FLOOR if _kind(name) == "gradient" else OUTPUT_FLOOR
    floor = floors.get(dtype, max(floors.values()))
    if dtype == torch.float32 and reference.may_use_tf32:
        floor = max(floor, TF32_FLOOR)
    return min(floor if reference.has_yardstick else FLOOR_FACTOR_WITHOUT_YARDSTICK * floor, LARGEST_TOLERANCE)


def _errors(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor) -> tuple[float, float, float, int]:
    """Root mean squares of the error and of the exact values, the largest error, and how many are NaN or infinite."""
    squares, sizes, largest, wrong = 0.0, 0.0, 0.0, 0
    for one, right, own in _pieces(found, exact, eager):
        finite = right.isfinite() & own.isfinite()
        # Where eager has NaN or infinity, the same is right, and so is a number of the reference that it cannot hold.
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
    """Dense tensors of one shape piece by piece, on the GPU that one of them is on, else on the host."""
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), torch.device("cpu"))
    for pieces in zip(*(tensor.reshape(-1).split(_PIECE) for tensor in tensors), strict=True):
        yield [piece.to(device) for piece in pieces]
