"""
Pretends to Inductor and Triton, while they lower a graph, that the target GPU is in this machine.

``pretended_device`` answers their questions about the device from a ``Gpu`` record. On exit, also after an error, it
undoes all changes and empties the process-wide caches. Nothing is ever run on the device.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from layoutdoctor.capture.compat import triton_version

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.gpus import Gpu


@contextlib.contextmanager
def cudnn_formats() -> Iterator[None]:
    """
    A block in which convolutions of fake tensors return cuDNN's strides, also on the CPU.

    Dynamo and AOTAutograd trace with fake tensors on the CPU. With cuDNN's strides for convolutions, the traced graph
    has the strides that it would have on the GPU, tangents and saved tensors included.

    cuDNN's rule: the result is channels-last if the strides of the input or the weight *look* channels-last, except for
    double. oneDNN has the same rule, and every build of torch can apply oneDNN's rule. For bfloat16, cuDNN is assumed
    to do the same as for float16; without a GPU, torch cannot confirm this assumption.

    Source:
        ``torch/_subclasses/fake_impls.py`` ``conv``, which asks ``torch._C._select_conv_backend`` and takes the format
        of that backend; torch 2.7, 2.11, 2.13, 2.15. ``cudnn_conv_use_channels_last`` and
        ``mkldnn_conv_use_channels_last``, ``aten/src/ATen/native/ConvUtils.h`` (torch 2.13; cuDNN 8.0.4 or newer, 3-D
        included).
    """
    from torch._subclasses.fake_tensor import FakeTensor

    backends = torch._C._ConvBackend
    original = torch._C._select_conv_backend

    def select_conv_backend(*args: Any, **keywords: Any) -> Any:
        given = args[0] if args else keywords["input"]
        if not isinstance(given, FakeTensor):
            return original(*args, **keywords)
        return backends.Empty if 0 in given.shape else backends.Mkldnn

    with mock.patch.object(torch._C, "_select_conv_backend", select_conv_backend):
        yield


_OTHER_DEVICE = {"cpu": "cuda", "cuda": "cpu"}


@contextlib.contextmanager
def decomposed_as_on_a_gpu() -> Iterator[None]:
    """
    A block in which operations on CPU tensors are decomposed, and get strides, as on a GPU.

    Functions of torch that decide by the name of the device get code in which "cpu" and "cuda" are exchanged.

    Source:
        ``device.type`` in the functions named here, torch 2.7, 2.11, 2.13, 2.14; checked by comparing with the graphs
        that the same torch compiles for a GPU.
    """
    from torch import _meta_registrations, _refs
    from torch._decomp import decompositions, decompositions_for_rng

    upsampling = ("_upsample_get_cubic_coefficients", "_upsample_linear", "_upsample_nearest")
    decide_by_device = (
        (decompositions, (*upsampling, "_reflection_or_replication_pad", "native_batch_norm_helper")),
        (decompositions_for_rng, ("bernoulli_p",)),
        (_meta_registrations, ("meta_pixel_shuffle", "upsample_nearest2d")),
        (_refs, ("native_group_norm", "native_layer_norm")),
    )
    with contextlib.ExitStack() as stack:
        stack.callback(forget_fake_results)
        for module, names in decide_by_device:
            for function in (inspect.unwrap(getattr(module, name, len)) for name in names):
                if isinstance(function, types.FunctionType):
                    stack.callback(setattr, function, "__code__", function.__code__)
                    function.__code__ = _with_other_devices(function.__code__)
        forget_fake_results()
        yield


def _with_other_devices(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return constant.replace(co_consts=tuple(map(_with_other_devices, constant.co_consts)))
    if isinstance(constant, tuple):
        return tuple(map(_with_other_devices, constant))
    return _OTHER_DEVICE.get(constant, constant) if isinstance(constant, str) else constant


WARP_SIZE = 32
_BLOCK_SHARED_BYTES = 48 * 2**10


@contextlib.contextmanager
def pretended_device(target: Gpu) -> Iterator[None]:
    """
    A block in which Inductor gets the answers of the target GPU when it asks about ``cuda:0``.

    Source:
        Found by leaving out one name at a time (torch 2.7, 2.11, 2.13, 2.15): ``torch.cuda.get_device_capability``,
        ``CudaInterface`` and its ``Worker`` (torch/_dynamo/device_interface.py), ``DeviceProperties.create``
        (torch/_inductor/runtime/hints.py), ``torch.utils._triton``, Triton's active driver.
    """
    with contextlib.ExitStack() as stack:
        _forget_answers()
        stack.callback(_forget_answers)
        _answer_for_device(stack, target)
        if triton_version() is None:
            _pretend_triton(stack)
        else:
            stack.enter_context(_driver_of(target))
        stack.enter_context(python_tensor_methods())
        yield


def _forget_answers() -> None:
    """Empties the process-wide caches that hold answers about the pretended or the real device."""
    from torch._inductor.runtime import hints
    from torch.utils import _triton

    forget_fake_results()
    for cached in (hints.DeviceProperties.create, *vars(_triton).values()):
        clear = getattr(cached, "cache_clear", None)
        if clear is not None:
            clear()


def forget_fake_results() -> None:
    """Empties the process-wide cache of the results of operations on fake tensors."""
    from torch._subclasses import fake_tensor

    fake_tensor.FakeTensorMode.cache_clear()


def device_properties(target: Gpu) -> Any:
    """Makes the target GPU's answer to ``torch.cuda.get_device_properties``."""
    major, minor = target.capability
    return types.SimpleNamespace(
        name=target.device_name,
        major=major,
        minor=minor,
        multi_processor_count=target.multiprocessor_count,
        total_memory=target.memory_bytes,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=target.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=WARP_SIZE,
        shared_memory_per_block=_BLOCK_SHARED_BYTES,
        shared_memory_per_block_optin=target.shared_bytes_per_block,
        shared_memory_per_multiprocessor=target.shared_bytes_per_multiprocessor,
        L2_cache_size=target.l2_bytes,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
    )


def _answer_for_device(stack: contextlib.ExitStack, target: Gpu) -> None:
    from torch._dynamo import device_interface

    interface = device_interface.CudaInterface
    properties, is_here = device_properties(target), torch.cuda.is_available()
    answers: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (torch.cuda, "get_device_capability", lambda device=None: target.capability),
        (torch.cuda, "get_device_properties", lambda device=None: properties),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_count", lambda: 1),
        # Here the true answer is given: torch may derive it from the changed count, and fake tensors use a real GPU.
        (torch.cuda, "is_available", lambda: is_here),
        (interface, "get_device_properties", lambda device=None: properties),
        (interface, "is_bf16_supported", lambda including_emulation=False: True),
        (interface, "is_available", lambda: True),
        (interface, "current_device", lambda: 0),
        (interface.Worker, "get_device_properties", lambda device=None: properties),
    )
    for owner, name, answer in answers:
        replacement = answer if owner is torch.cuda else staticmethod(answer)
        stack.enter_context(mock.patch.object(owner, name, replacement))


def _pretend_triton(stack: contextlib.ExitStack) -> None:
    """Reports Triton as installed: without it, the scheduler refuses the device and no code is generated."""
    from torch._inductor import scheduler
    from torch.utils import _triton

    for module in (_triton, scheduler):
        if hasattr(module, "has_triton"):
            stack.enter_context(mock.patch.object(module, "has_triton", return_value=True))


def _driver_of(target: Gpu) -> Any:
    from triton.runtime import driver

    # Triton 3.3 keeps the driver in ``active``. Later versions keep it in ``_active``; there, ``active`` is a property
    # that looks for a device.
    name = "active" if "active" in vars(driver) else "_active"
    return mock.patch.object(driver, name, triton_driver(target))


def triton_driver(target: Gpu) -> Any:
    """
    Makes a substitute for Triton's driver that suffices for generating code; it cannot launch kernels.

    Source:
        ``triton.backends.driver.DriverBase``, Triton 3.3, 3.6, 3.7, 3.9; ``get_gpu_shared_memory`` of
        ``torch/_inductor/utils.py``.
    """
    from triton.backends.compiler import GPUTarget

    major, minor = target.capability
    compiled_for = GPUTarget("cuda", 10 * major + minor, WARP_SIZE)
    limits = {"max_shared_mem": target.shared_bytes_per_block, "multiprocessor_count": target.multiprocessor_count}
    return types.SimpleNamespace(
        get_current_target=lambda: compiled_for,
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        get_device_capability=lambda device=0: target.capability,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        utils=types.SimpleNamespace(get_device_properties=lambda device=0: limits),
    )


def launch_no_kernels(target: Gpu) -> None:
    """
    Keeps this process, until it ends, from launching the model's own Triton kernels, because their GPU is not there.

    The kernels then write no results: the memory keeps its old contents. Torch still traces the kernels for the target.

    Source:
        ``JITFunction.run``, ``Autotuner.run`` (triton/runtime); ``generate_ttir``, which asks the driver for its target
        (torch/_higher_order_ops/triton_kernel_wrap.py); torch 2.13, Triton 3.7.
    """
    if "triton.runtime" not in sys.modules:  # then the model has no Triton kernels
        return
    from triton.runtime import autotuner, jit

    _driver_of(target).start()
    for kind in (jit.JITFunction, autotuner.Autotuner):
        mock.patch.object(kind, "run", return_value=None).start()


@contextlib.contextmanager
def python_tensor_methods() -> Iterator[None]:
    """
    A block in which equivalent Python code replaces the methods of fake tensors that need a CUDA device guard in C++.

    A torch built without CUDA has no such guard. There, ``x.contiguous()`` or ``x[0]`` on a fake CUDA tensor raises
    "PyTorch is not linked with support for cuda devices", although nothing would be computed. Shape functions and
    decompositions call these methods, for example for Conv1d, the backward of reflection padding, and slicing.

    Source:
        ``tools/autograd/templates/python_variable_methods.cpp``, ``torch/csrc/autograd/python_variable_indexing.cpp``:
        these methods hold an ``OptionalDeviceGuard``; found by calling every method of a fake tensor, torch 2.13.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    methods: dict[str, Callable[..., Any]] = {
        "contiguous": _contiguous,
        "copy_": torch.ops.aten.copy_.default,
        "new_tensor": _new_tensor,
        "__invert__": torch.ops.aten.bitwise_not.default,
        "__getitem__": _getitem,
        "__setitem__": _setitem,
    }
    with contextlib.ExitStack() as stack:
        for name, method in methods.items():
            replacement = _on_cuda_only(getattr(torch.Tensor, name), method)
            stack.enter_context(mock.patch.object(FakeTensor, name, replacement, create=True))
        yield


def _on_cuda_only(original: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(tensor: Any, *args: Any, **keywords: Any) -> Any:
        # In the shape function of an operation, a fake tensor's device is meta, which has a guard: the original works.
        return (method if tensor.device.type == "cuda" else original)(tensor, *args, **keywords)

    return call


def _contiguous(tensor: Any, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return torch.ops.aten.clone.default(tensor, memory_format=memory_format)


def _new_tensor(tensor: Any, data: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Any:
    return torch.tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device)


def _getitem(tensor: Any, index: Any) -> Any:
    viewed, indices = _basic_view(tensor, index)
    return torch.ops.aten.index.Tensor(viewed, indices) if indices else viewed


def _setitem(tensor: Any, index: Any, value: Any) -> None:
    viewed, indices = _basic_view(tensor, index)
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    if indices:
        torch.ops.aten.index_put_.default(viewed, indices, value)
    else:
        torch.ops.aten.copy_.default(viewed, value)


def _basic_view(tensor: Any, index: Any) -> tuple[Any, list[Any]]:
    """Applies the ints, slices, None and Ellipsis of an index; returns the view and its index tensors by dimension."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(_dimensions_taken(item) for item in items)
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    position = next(number for number, item in enumerate(items) if item is Ellipsis)
    items[position : position + 1] = [slice(None)] * (tensor.dim() - taken)
    dimension, indices = 0, {}
    for item in items:
        if item is None:
            tensor = torch.ops.aten.unsqueeze.default(tensor, dimension)
        elif isinstance(item, slice):
            if item != slice(None):
                step = 1 if item.step is None else item.step
                tensor = torch.ops.aten.slice.Tensor(tensor, dimension, item.start, item.stop, step)
        elif isinstance(item, (torch.Tensor, list)):
            indices[dimension] = torch.as_tensor(item, device=None if isinstance(item, torch.Tensor) else tensor.device)
        else:
            tensor = torch.ops.aten.select.int(tensor, dimension, item)
            continue
        dimension += max(_dimensions_taken(item), 1)
    return tensor, [indices.get(number) for number in range(max(indices) + 1)] if indices else []


def _dimensions_taken(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
