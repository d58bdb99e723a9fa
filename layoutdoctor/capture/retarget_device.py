"""
A GPU that is not there, as far as Inductor and Triton ask for one while they lower a graph.

``pretended_device`` answers their questions from a ``Gpu`` and undoes all of it on exit, process-wide caches
included, also when something raises. Nothing is ever run on the device.
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
    A block in which fake convolutions get the strides that cuDNN gives them, on a CPU device as well.

    The fake tensors that Dynamo and AOTAutograd trace with are on the CPU; with cuDNN's answer for them, too, the graph
    is traced with the strides it would be traced with on the GPU, tangents and saved tensors included.

    cuDNN's rule is oneDNN's, which every build of torch can be asked for: channels-last where the input or the weight
    *looks* channels-last by its strides, never for double. bfloat16 is taken to follow the rule of float16 here: an
    assumption, as no torch without a GPU says anything else about it.

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
    A block in which operations on tensors of the CPU are taken apart, and laid out, as those of a GPU.

    What they ask for by the name of the device has the other name in its code meanwhile.

    Source:
        ``device.type`` in the functions named here, torch 2.7, 2.11, 2.13, 2.14; graphs compared with what the same
        torch compiles for a GPU.
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
    A block in which Inductor finds the target where it looks for ``cuda:0``.

    Source:
        Found by leaving out one at a time (torch 2.7, 2.11, 2.13, 2.15): ``torch.cuda.get_device_capability``,
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
    """Empties the process-wide caches that hold answers about the device, ours or the machine's own."""
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
    """The answer of ``torch.cuda.get_device_properties``."""
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
        # Which a build for CUDA may answer by the count: fake tensors make a real one if there is a GPU.
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
    """Without Triton the scheduler would refuse the device; with this it goes up to the generated code."""
    from torch._inductor import scheduler
    from torch.utils import _triton

    for module in (_triton, scheduler):
        if hasattr(module, "has_triton"):
            stack.enter_context(mock.patch.object(module, "has_triton", return_value=True))


def _driver_of(target: Gpu) -> Any:
    from triton.runtime import driver

    # Triton 3.3 keeps the driver in ``active``; later ones keep it in ``_active``, where ``active`` is a property that
    # would look for a device.
    name = "active" if "active" in vars(driver) else "_active"
    return mock.patch.object(driver, name, triton_driver(target))


def triton_driver(target: Gpu) -> Any:
    """
    Enough of Triton's driver for generating code; launching anything is not among it.

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
    Has this process launch none of the model's own Triton kernels, for the rest of its life: their GPU is not there.

    Their results are then whatever the memory held. torch traces them for the target.

    Source:
        ``JITFunction.run``, ``Autotuner.run`` (triton/runtime); ``generate_ttir``, which asks the driver for its target
        (torch/_higher_order_ops/triton_kernel_wrap.py); torch 2.13, Triton 3.7.
    """
    if "triton.runtime" not in sys.modules:  # then the model has none
        return
    from triton.runtime import autotuner, jit

    _driver_of(target).start()
    for kind in (jit.JITFunction, autotuner.Autotuner):
        mock.patch.object(kind, "run", return_value=None).start()


@contextlib.contextmanager
def python_tensor_methods() -> Iterator[None]:
    """
    A block in which the methods of a fake tensor that ask C++ for a CUDA device are ones in Python, of equal effect.

    A torch built without CUDA has no device guard for it, so that ``x.contiguous()`` or ``x[0]`` on a fake CUDA tensor
    raises "PyTorch is not linked with support for cuda devices", though nothing would be computed. Shape functions and
    decompositions call them: those of Conv1d, of reflection padding's backward, of slicing.

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
        # Inside a kernel's shape function a fake tensor says that it is on the meta device, which has a guard.
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
    """The view that ints, slices, None and Ellipsis give, and for each of its dimensions the tensor that indexes it."""
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
