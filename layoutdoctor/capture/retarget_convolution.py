"""
In which memory format cuDNN returns a convolution: torch's own rule, in Python, for tensors that are not there.

A fake convolution asks torch's C++ code which backend would run it, and takes the strides of its result from the
answer. A torch without CUDA answers for a GPU with ATen's slow code and contiguous strides, and a torch with CUDA but
without a GPU does so for bfloat16: no error, only other layouts than a real device has. While ``cudnn_formats`` is
entered, both questions about fake tensors are answered as a machine with a GPU and cuDNN answers them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from layoutdoctor.errors import UnsupportedTorchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "transposed")


def required(owner: Any, name: str) -> Any:
    """
    A private name of torch that lowering for a GPU rests on.

    Raises:
        UnsupportedTorchError: This torch has no such name.
    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise UnsupportedTorchError(
            f"cannot lower for a GPU that is not there with torch {torch.__version__}: {where}.{name} is missing; "
            "expected a torch from 2.7 to 2.15; diagnose on a machine with the GPU instead (without a target)"
        ) from error


@contextlib.contextmanager
def cudnn_formats() -> Iterator[None]:
    """
    A block in which fake convolutions get the strides that cuDNN gives them, on a CPU device as well.

    The fake tensors that Dynamo and AOTAutograd trace with are on the CPU; with cuDNN's answer for them, too, the graph
    is traced with the strides it would be traced with on the GPU, tangents and saved tensors included.

    Raises:
        UnsupportedTorchError: This torch asks otherwise.

    Source:
        ``torch/_subclasses/fake_impls.py`` ``conv``, which asks ``torch._C._select_conv_backend`` and
        ``torch._C._conv_determine_backend_memory_format``; torch 2.7, 2.11, 2.13, 2.15.
    """
    backends = required(torch._C, "_ConvBackend")
    select = required(torch._C, "_select_conv_backend")
    determine = required(torch._C, "_conv_determine_backend_memory_format")
    answers = (
        ("_select_conv_backend", _selecting(select, backends)),
        ("_conv_determine_backend_memory_format", _determining(determine, backends)),
    )
    with contextlib.ExitStack() as stack:
        for name, answer in answers:
            stack.enter_context(mock.patch.object(torch._C, name, answer))
        yield


def _is_fake(tensor: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def _selecting(original: Callable[..., Any], backends: Any) -> Callable[..., Any]:
    def select_conv_backend(*args: Any, **keywords: Any) -> Any:
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **keywords}
        if not _is_fake(given.get("input")):
            return original(*args, **keywords)
        if 0 in given["input"].shape:
            return backends.Empty
        return backends.CudnnTranspose if given.get("transposed") else backends.Cudnn

    return select_conv_backend


def _determining(original: Callable[..., Any], backends: Any) -> Callable[..., Any]:
    cudnn = (backends.Cudnn, backends.CudnnTranspose)

    def conv_determine_backend_memory_format(given: Any, weight: Any, backend: Any) -> Any:
        if not _is_fake(given):
            return original(given, weight, backend)
        return cudnn_memory_format(given, weight) if backend in cudnn else torch.contiguous_format

    return conv_determine_backend_memory_format


def cudnn_memory_format(given: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """
    The memory format of a convolution's result on a GPU with cuDNN.

    Channels-last where the input or the weight *looks* channels-last by its strides, never for double. bfloat16 is
    taken to follow the rule of float16 here: an assumption, as no torch without a GPU says anything else about it.

    Args:
        given: The convolution's input, ``[N, C, ...]`` of rank 4 or 5 (torch makes a 1-D convolution a 2-D one first).

    Source:
        ``cudnn_conv_suggest_memory_format`` and ``cudnn_conv_use_channels_last``, ``aten/src/ATen/native/ConvUtils.h``
        (torch 2.13; cuDNN 8.0.4 or newer, 3-D included).
    """
    if torch.double in (given.dtype, weight.dtype):
        return torch.contiguous_format
    wanted = _CHANNELS_LAST.get(weight.dim())
    if wanted is not None and wanted in (suggested_format(given), suggested_format(weight)):
        return wanted
    return torch.contiguous_format


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """
    What a tensor's strides look like: ``Tensor::suggest_memory_format()`` of torch's C++ code.

    Unlike ``is_contiguous(memory_format=...)`` this looks at the order of the strides only, so that a slice of a
    channels-last tensor counts as channels-last, and a 1x1 weight in contiguous strides does not.

    Source:
        ``is_channels_last_strides_2d_s4`` and ``is_channels_last_strides_3d_s5``, ``c10/core/MemoryFormat.h``.
    """
    wanted = _CHANNELS_LAST.get(tensor.dim())
    if wanted is None or not _looks_channels_last(tuple(tensor.shape), tuple(tensor.stride())):
        return torch.contiguous_format
    return wanted


def _looks_channels_last(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the strides grow from the channel over the spatial dimensions, last one first, to the batch."""
    if stride[1] == 0:
        return False
    least = 0
    for dimension in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dimension] == 0 or stride[dimension] < least:
            return False
        if dimension == 0 and least == stride[1]:  # [N, 1, 1, 1] in equal strides: contiguous by convention
            return False
        least = stride[dimension] * shape[dimension]
    return True
