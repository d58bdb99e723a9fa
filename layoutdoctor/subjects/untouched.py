"""The proof that the caller's model and inputs were left alone: a checksum of all they reach, before and after."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layoutdoctor.errors import SubjectError
from layoutdoctor.subjects.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.units import Bytes

LARGEST_WHOLE: Bytes = 4 << 20
"""Of more than these blocks are read, evenly over the tensor, and torch's own count of changes tells the rest."""

LARGEST_KEPT: Bytes = 1 << 16
"""A tensor up to this size is kept as it was, to be put back: running statistics, biases and the like."""

_MOST_KEPT: Bytes = 16 << 20
_BLOCKS = 64
_BLOCK: Bytes = 1 << 14
_MOST_NAMED = 5


@contextlib.contextmanager
def untouched(subject: LoadedSubject) -> Iterator[None]:
    """
    A block after which model and inputs are as they were: values, strides, gradients, flags, modes, buffers.

    Raises:
        SubjectError: Something is another; it is put back as far as that is possible.
    """
    watch = _Watch((subject.model, subject.args, subject.kwargs))
    try:
        yield
    except BaseException as error:
        problem = _problem(subject.name, watch.put_back())
        if problem is not None and isinstance(error, Exception):
            raise SubjectError(problem) from error
        if problem is not None:
            warnings.warn(problem, RuntimeWarning, stacklevel=4)
        raise
    problem = _problem(subject.name, watch.put_back())
    if problem is not None:
        raise SubjectError(problem)


def _problem(name: str, changes: list[_Change]) -> str | None:
    if not changes:
        return None
    named = [f"{change.what}{'' if change.is_back else ' (cannot be put back)'}" for change in changes[:_MOST_NAMED]]
    more = [f"and {len(changes) - _MOST_NAMED} more"] if len(changes) > _MOST_NAMED else []
    end = "; what can be was put back" if not all(change.is_back for change in changes) else "; it was put back"
    return (
        f"cannot diagnose {name}: it was changed meanwhile: {', '.join([*named, *more])}{end}; a copy of the model "
        "still reaches it, or something else uses the model: make it an attribute of the model, or pass isolate=True"
    )


@dataclass(frozen=True)
class _Change:
    what: str
    is_back: bool


@dataclass(frozen=True)
class _Values:
    """What tells whether a tensor holds what it held; the digest is None where its memory cannot be read."""

    digest: int | None
    version: int | None
    is_whole: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Values:
        """Reads it."""
        digest, is_whole = None, False
        with contextlib.suppress(Exception), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            digest, is_whole = _digest(tensor)
        return cls(digest, _version(tensor), is_whole)

    def differs(self, other: _Values) -> bool:
        """Whether something was written in between."""
        return self.digest != other.digest or (not self.is_whole and self.version != other.version)


def _version(tensor: torch.Tensor) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode
        return None


def _digest(tensor: torch.Tensor) -> tuple[int | None, bool]:
    """A sum over the bytes that a tensor's elements span, and whether all of them were read."""
    if tensor.layout != torch.strided:
        dense = tensor.detach().to_dense()
        return _digest(dense)[0], True
    if tensor.is_meta or not tensor.numel():
        return 0, True
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    storage, size = tensor.untyped_storage(), tensor.element_size()
    if not storage.data_ptr():
        return None, False
    start, length = tensor.storage_offset() * size, span * size
    data = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (length,), (1,))
    if length <= LARGEST_WHOLE:
        return zlib.crc32(data.cpu().numpy()), True
    found = 0
    for block in range(_BLOCKS):
        first = (length - _BLOCK) * block // (_BLOCKS - 1)
        found = zlib.crc32(data[first : first + _BLOCK].cpu().numpy(), found)
    return found, False


class _KeptTensor:
    """A tensor as it was; nothing of its memory is copied but where it is small."""

    def __init__(self, path: str, tensor: torch.Tensor, room: Bytes, *, with_gradient: bool = True) -> None:
        self.path, self.tensor = path, tensor
        self.alias = tensor
        with contextlib.suppress(Exception):  # a subclass of the user's may refuse
            self.alias = tensor.detach()
        self.needs_gradient = tensor.requires_grad
        self.values = _Values.of(tensor)
        self.copy: torch.Tensor | None = None
        if self.is_plain and 0 < self.byte_count <= min(LARGEST_KEPT, room):
            self.copy = self.alias.clone()
        grad = tensor.grad if with_gradient and tensor.is_leaf else None
        left = room - self.copied_bytes
        self.grad = None if grad is None else _KeptTensor(f"{path}.grad", grad, left, with_gradient=False)
        self._watches_gradient = with_gradient and tensor.is_leaf

    @property
    def is_plain(self) -> bool:
        """Whether strides and memory can be asked for."""
        return self.alias.layout == torch.strided and type(self.tensor) in (torch.Tensor, nn.Parameter)

    @property
    def byte_count(self) -> Bytes:
        """Of its elements."""
        return self.alias.numel() * self.alias.element_size()

    @property
    def copied_bytes(self) -> Bytes:
        """What was copied of it."""
        return 0 if self.copy is None else self.byte_count

    def put_back(self) -> Iterator[_Change]:
        """Puts it back and says what was another."""
        tensor = self.tensor
        if self._watches_gradient and tensor.grad is not (None if self.grad is None else self.grad.tensor):
            yield self._change("gradient", partial(setattr, tensor, "grad", self.grad and self.grad.tensor))
        if self.grad is not None:
            yield from self.grad.put_back()
        if self._looks(tensor) != self._looks(self.alias):
            yield self._change(
                f"{_shape_words(self.alias)} -> {_shape_words(tensor)}", partial(setattr, tensor, "data", self.alias)
            )
        if tensor.requires_grad != self.needs_gradient:
            yield self._change("requires_grad", partial(tensor.requires_grad_, self.needs_gradient))
        if self.values.differs(_Values.of(self.alias)):
            yield self._change("values", self._put_values_back)

    def _put_values_back(self) -> None:
        if self.copy is None:
            raise ValueError("nothing was kept")
        with torch.no_grad():
            self.alias.copy_(self.copy)

    def _looks(self, tensor: torch.Tensor) -> object:
        if not self.is_plain or tensor.layout != torch.strided:
            return tensor.shape, tensor.dtype, str(tensor.device), tensor.layout
        return tensor.shape, tensor.dtype, str(tensor.device), tensor.stride(), tensor.data_ptr()

    def _change(self, what: str, put_back: Callable[[], Any]) -> _Change:
        try:
            put_back()
        except Exception:  # whatever torch, or a subclass of the user's, refuses
            return _Change(f"{self.path} ({what})", is_back=False)
        return _Change(f"{self.path} ({what})", is_back=True)


def _shape_words(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = f", strides {tuple(tensor.stride())}" if tensor.layout == torch.strided else ""
    return f"{dtype}{list(tensor.shape)}{strides}"


class _KeptModule:
    """A module's mode, and which parameters, buffers and modules it has."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module = path, module
        self.training = module.training
        own = vars(module)
        self.tables = [(own[name], dict(own[name])) for name in ("_parameters", "_buffers", "_modules") if name in own]

    def put_back(self) -> Iterator[_Change]:
        """Puts it back and says what was another."""
        if self.module.training != self.training:
            self.module.training = self.training
            yield _Change(f"{self.path} ({'train' if self.training else 'eval'} mode)", is_back=True)
        for table, before in self.tables:
            different = [key for key in {**before, **table} if table.get(key, ...) is not before.get(key, ...)]
            if different:
                table.clear()
                table.update(before)
                yield from (_Change(f"{self.path}.{key}".removeprefix("."), is_back=True) for key in different)


class _Watch:
    """All that a value reaches, as it is now."""

    def __init__(self, value: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> None:
        model, args, kwargs = value
        self._reaches = [Reach(model), Reach((args, kwargs), "input")]  # keep identities from being used again
        found = [part for reach in self._reaches for part in reach.of_kind((torch.Tensor, nn.Module))]
        found += [part for reach in self._reaches for part in reach.outside()]
        room, known = _MOST_KEPT, set[int]()
        self.kept: list[_KeptTensor | _KeptModule] = []
        for path, part in found:
            if id(part) in known or (isinstance(part, torch.Tensor) and nn.parameter.is_lazy(part)):
                continue
            known.add(id(part))
            path = path.removeprefix(".") or type(part).__name__
            if isinstance(part, torch.Tensor):
                kept = _KeptTensor(path, part, room)
                room -= kept.copied_bytes + (kept.grad.copied_bytes if kept.grad is not None else 0)
                self.kept.append(kept)
            else:
                self.kept.append(_KeptModule(path, part))

    def put_back(self) -> list[_Change]:
        """Puts all back and says what was another."""
        return [change for kept in self.kept for change in kept.put_back()]
