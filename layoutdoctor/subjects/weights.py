"""
What the configurations of a diagnosis share: the memory of weights and inputs, and the weights of the loss.

Each configuration has a module, parameters and gradients of its own, but the parameters of all that keep the caller's
format lie in one memory, and those of all that run in channels_last in another. Most bytes of ours alive at once,
beside the caller's own model and inputs::

    rehearsal:  W + I + A                    one copy that the model may do to what it likes
    reference:  8/s (W + I + A - G) + R      the same in float64, s bytes being one number of the model's, without the
                                             large gradients G, which come one by one; where that does not fit, the
                                             reference is eager itself: W + I + A + R; in training the latter
                                             as well, with perturbed weights
    a trial:    W + C + Z W + T B + F I + L + A + R
    timing:     W + C + Z W + T B + F I + L + A

W is the weights; C those among them that have other strides in channels_last (at most W); Z the number of
configurations that freeze them, each into constants of its own; T the number of those that are timed, B their small
buffers and whatever the model changes in place, which cannot be shared; I the inputs, F the number of input formats; L
the weights of the loss (training: as large as the outputs); A activations, outputs and gradients of one iteration, of
one configuration at a time; R the reference: outputs in float64 and (training) gradients in float32, on the host. Where
the model is our own (loaded by the command), the first W of trials and timing is the model itself. What torch takes for
itself comes on top: code, the profiler's events.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.errors import SubjectError
from layoutdoctor.measure.memory import Need, why_too_little
from layoutdoctor.subjects.copies import (
    check_has_data,
    clone_tensor,
    copy_inputs,
    copy_model,
    in_format,
    own_tensors,
    with_dynamo_marks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import FormatChoice
    from layoutdoctor.units import Bytes

    Inputs = tuple[tuple[Any, ...], dict[str, Any]]

SMALLEST_SHARED_BUFFER = 1 << 20
"""Bytes. Smaller buffers are copied for each configuration: they are what training changes."""


def weights_of(model: Callable[..., Any]) -> list[torch.Tensor]:
    """
    The parameters and buffers of a module, or those of the modules and the tensors that a function reads; not copies.

    Raises:
        SubjectError: A parameter holds no data, or the modules of a function cannot be copied.
    """
    if isinstance(model, nn.Module):
        check_has_data(model)
        return own_tensors(model)
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor | None:
        found.append(tensor)
        return same_memory(tensor)

    copy_model(model, note)
    return found


def same_memory(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor | None:
    """
    A leaf without gradient and hooks that lies in the memory of another tensor.

    Args:
        like: Whose type and need of a gradient it gets; the same tensor where None.

    Returns:
        None where the type cannot be made so.
    """
    like = tensor if like is None else like
    plain = tensor.detach()
    if not isinstance(like, nn.Parameter):
        if type(plain) is not type(like):
            return None
        return with_dynamo_marks(plain.requires_grad_(like.requires_grad), like)
    for make in (nn.Parameter, type(like)):
        with contextlib.suppress(Exception):  # a constructor with other arguments
            made = make(plain, like.requires_grad)
            if type(made) is type(like):
                return made
    return None


def byte_count(tensors: Sequence[torch.Tensor]) -> Bytes:
    """Bytes of the elements of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def refuse_unless_it_fits(
    name: str, parts: Sequence[tuple[str, Sequence[torch.Tensor]]], more: Need | None = None
) -> None:
    """
    Refuses a subject whose least need is more than its device has.

    Args:
        parts: Tensors of which as many bytes are needed again, and what for.

    Raises:
        SubjectError: It does not fit; with the number needed.
    """
    devices = list(dict.fromkeys(str(tensor.device) for _, tensors in parts for tensor in tensors))
    for device in devices:
        sizes = [(what, byte_count([t for t in tensors if str(t.device) == device])) for what, tensors in parts]
        extra = more.parts if more is not None and device == devices[0] else ()
        problem = why_too_little(Need((*sizes, *extra)), device)
        if problem is not None:
            raise SubjectError(
                f"cannot diagnose {name}: on {device} it needs at least {problem}; diagnose it on a machine with more "
                "memory, with a smaller input (--input), or in a smaller dtype (--dtype bf16)"
            )


class WatchedCopies:
    """Copies of weights of which can be told afterwards which the model changes in place."""

    def __init__(self) -> None:
        self.originals: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor, int, int]] = []

    def __call__(self, original: torch.Tensor) -> torch.Tensor | None:
        """A copy; None of what is never shared."""
        self.originals.append(original)
        if not _can_be_shared(original):
            return None
        copied = same_memory(_copy_of(original, "preserve"), original)
        if copied is not None:
            self._copies.append((original, copied, copied._version, _address(copied)))
        return copied

    def changed(self) -> tuple[torch.Tensor, ...]:
        """
        The originals whose copies are not what they were.

        Versions do not tell everything: what is written by way of ``.data`` leaves them as they are, so that the values
        are compared.
        """
        return tuple(
            original
            for original, copied, version, address in self._copies
            if copied._version != version
            or _address(copied) != address
            or copied.requires_grad != original.requires_grad
            or not same_values(original, copied)
        )


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if _is_plain(tensor) else 0


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same; NaN equals NaN. True for types that cannot be compared."""
    if not _is_plain(one) or not _is_plain(other):
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    with torch.no_grad():
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


@dataclass
class SharedTensors:
    """
    The weights and inputs of one diagnosis, each once for each format in use.

    Attributes:
        changed: Those that the model changes in place: they are copied for each configuration.
        is_ours: Whether nobody else holds the subject, so that its own memory serves its own format.
        changes_inputs: Whether the model changes its inputs in place: they are copied for each configuration.
        activation_bytes: What an iteration takes beside the weights, as far as is known.
    """

    originals: Sequence[torch.Tensor] = ()
    changed: Sequence[torch.Tensor] = ()
    is_ours: bool = False
    changes_inputs: bool = False
    activation_bytes: Bytes = 0
    device: str = "cpu"
    loss_weights: dict[Hashable, torch.Tensor] = field(default_factory=dict, repr=False)
    _weights: dict[Hashable, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    _inputs: dict[str, Inputs] = field(default_factory=dict, init=False, repr=False)

    def weights(self, choice: FormatChoice) -> Callable[[torch.Tensor], torch.Tensor | None]:
        """What ``copy_model`` asks for each weight of a configuration."""

        def share(original: torch.Tensor) -> torch.Tensor | None:
            if not self._is_shared(original):
                return None
            key = _key(original, choice)
            if key not in self._weights:
                self._weights[key] = self._memory_for(original, choice)
            return same_memory(self._weights[key], original)

        return share

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """A block that copies weights; where it raises, what it copied is let go of."""
        before = dict(self._weights)
        try:
            yield
        except BaseException:
            self._weights = before
            raise

    def _is_shared(self, original: torch.Tensor) -> bool:
        return _can_be_shared(original) and not any(original is tensor for tensor in self.changed)

    def _memory_for(self, original: torch.Tensor, choice: FormatChoice) -> torch.Tensor:
        return original.detach() if self._serves_itself(original, choice) else _copy_of(original, choice)

    def _serves_itself(self, original: torch.Tensor, choice: FormatChoice) -> bool:
        return self.is_ours and _owns_memory(original) and _key(original, choice) == _key(original, "preserve")

    def converted_count(self, choice: FormatChoice) -> int:
        """How many of the shared weights have other strides in a format than the caller gave them."""
        return sum(
            _key(original, choice) != _key(original, "preserve")
            for original in self.originals
            if self._is_shared(original) and _is_plain(original)
        )

    def need(self, choice: FormatChoice) -> Need:
        """What one more configuration takes: the weights not there yet in its format, and its activations."""
        missing = [
            original
            for original in self.originals
            if not self._is_shared(original)
            or (_key(original, choice) not in self._weights and not self._serves_itself(original, choice))
        ]
        format_name = "" if choice == "preserve" else f" in {choice}"
        return Need(
            ((f"weights{format_name}", byte_count(missing)), ("activations of one iteration", self.activation_bytes))
        )

    def inputs(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], choice: FormatChoice, convert: Callable[[Any], Any]
    ) -> Inputs:
        """
        Inputs for one configuration: tensors of its own in shared memory, everything else copied.

        Args:
            convert: Gives inputs that format; leaves what has it already.
        """
        if self.changes_inputs:
            converted: Inputs = convert(copy_inputs(args, kwargs))
            return converted
        if "preserve" not in self._inputs:
            self._inputs["preserve"] = copy_inputs(args, kwargs)
        if choice not in self._inputs:
            self._inputs[choice] = convert(self._inputs["preserve"])
        return _own_tensors_in_shared_memory(self._inputs[choice])


def _own_tensors_in_shared_memory(inputs: Inputs) -> Inputs:
    made: dict[int, Any] = {}

    def own(leaf: Any) -> Any:
        if id(leaf) not in made:
            tensor = isinstance(leaf, torch.Tensor)
            own = same_memory(leaf) if tensor else None
            made[id(leaf)] = copy_inputs((leaf,), {})[0][0] if own is None else own
        return made[id(leaf)]

    owned: Inputs = pytree.tree_map(own, inputs)
    return owned


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_quantized


def _owns_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its storage: another one in the same storage is then the same elements."""
    return _is_plain(tensor) and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _can_be_shared(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, nn.Parameter):
        return True
    # A buffer that is part of another one stays with it in a deep copy.
    return tensor.is_leaf and _owns_memory(tensor) and byte_count([tensor]) >= SMALLEST_SHARED_BUFFER


def _key(original: torch.Tensor, choice: FormatChoice) -> Hashable:
    if not _is_plain(original):
        return id(original), choice
    if choice == "preserve":
        return id(original), original.stride()
    shape = torch.empty_strided(original.shape, original.stride(), dtype=original.dtype, device="meta")
    return id(original), in_format(shape, choice).stride()


def _copy_of(original: torch.Tensor, choice: FormatChoice) -> torch.Tensor:
    if not _is_plain(original):
        copied = copy.deepcopy(original) if original.layout == torch.strided else clone_tensor(original)
        formatted = in_format(copied.detach(), choice)
        if formatted.layout == torch.strided and formatted.stride() != copied.stride():
            copied.data = formatted
        return copied.detach()
    if _key(original, choice) != _key(original, "preserve"):
        return in_format(original.detach(), choice)
    return clone_tensor(original).detach()
