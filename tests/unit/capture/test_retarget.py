"""A GPU that is not there: what is pretended, that all of it is undone, and cuDNN's rule against torch's own code."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from loops import for_each
from torch._dynamo import device_interface
from torch._inductor import decomposition, graph
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils import _triton

from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.retarget_device import (
    cudnn_formats,
    pretended_device,
    python_tensor_methods,
)
from layoutdoctor.diagnosis.configurations import find_target

H100 = find_target("cuda:90")


def everything_patched() -> dict[str, Any]:
    """Every object that lowering replaces for a while, and what the process-wide caches would answer."""
    interface = device_interface.CudaInterface
    driver = pytest.importorskip("triton.runtime").driver
    return {
        "convolution": torch._C._select_conv_backend,
        "cuda": tuple(
            getattr(torch.cuda, name)
            for name in ("get_device_capability", "get_device_properties", "current_device", "device_count")
        ),
        "interface": {name: interface.__dict__.get(name) for name in ("get_device_properties", "is_available")},
        "worker": interface.Worker.__dict__.get("get_device_properties"),
        "lowering": graph.GraphLowering.compile_to_module,
        "decomposition": decomposition.is_gpu,
        "methods": {name for name in vars(FakeTensor) if name in ("contiguous", "__getitem__", "copy_", "__invert__")},
        "driver": vars(driver).get("_active", vars(driver).get("active")),  # the latter in Triton 3.3
        "has_triton": _triton.has_triton(),
        "answers": DeviceProperties.create.cache_info().currsize,
    }


@pytest.mark.parametrize("raises", [False, True], ids=["success", "failure"])
def test_everything_is_as_before_after(raises: bool) -> None:
    DeviceProperties.create.cache_clear()
    before = everything_patched()

    try:
        with TargetLowering(H100, {}), pretended_device(H100):
            assert torch.cuda.get_device_capability() == (9, 0)
            assert DeviceProperties.create(torch.device("cuda", 0)).multi_processor_count == 132
            assert _triton.has_triton()
            assert everything_patched() != before
            if raises:
                raise RuntimeError("a lowering that fails")  # noqa: TRY301 - the raise under test
    except RuntimeError:
        pass

    assert everything_patched() == before


def test_a_convolution_of_random_layout_gets_the_strides_that_the_rule_states() -> None:
    """Channels-last where one of both looks so by its strides, as a slice does, but never for double nor in 1-D."""
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    draw = random.Random(17)

    def laid_out(shape: list[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
        if kind == "contiguous":
            return torch.empty(shape, dtype=dtype, device="cuda:0")
        wide = torch.empty([shape[0], 2 * shape[1], *shape[2:]], dtype=dtype, device="cuda:0")
        return wide.to(memory_format=formats[len(shape) - 2])[:, : shape[1]]

    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    with cudnn_formats(), python_tensor_methods(), FakeTensorMode():
        for rank, transposed, dtype, _ in itertools.product((1, 2, 3), (False, True), dtypes, range(10)):
            kinds = [draw.choice(["contiguous", "slice"] if rank > 1 else ["contiguous"]) for _ in range(2)]
            shapes = [[2, 4, *[6] * rank], [4, 4, *[3] * rank]]
            tensors = [laid_out(shape, dtype, kind) for shape, kind in zip(shapes, kinds, strict=True)]
            zeros, ones = [0] * rank, [1] * rank
            result = torch.ops.aten.convolution(*tensors, None, ones, ones, ones, transposed, zeros, 1)

            stated = "slice" in kinds and dtype != torch.float64
            assert result.is_contiguous(memory_format=formats[rank] if stated else torch.contiguous_format)
            assert result.shape == (2, 4, *[6] * rank)
        pointwise = torch.empty(2, 8, 6, 6, device="cuda:0"), torch.empty(4, 8, 1, 1, device="cuda:0")
        assert torch.conv2d(*pointwise).is_contiguous()  # though such a weight satisfies both formats
        assert torch.conv2d(pointwise[0][:0], pointwise[1]).shape == (0, 4, 6, 6)


INDICES: list[Any] = [
    0, -1, slice(1, 3), slice(None, None, 2), None, Ellipsis, (0, slice(1, None)), (..., 0), (slice(None), 1, None),
    (None, ..., slice(0, 1)), [0, 2], (slice(None), [0, 1]), (0, [0, 1], [1, 1]), torch.tensor([1, 0]),
    (slice(None), torch.tensor([[0, 1], [1, 0]])), (torch.tensor([0, 1]), slice(None), torch.tensor([2, 0])),
]  # fmt: skip


@for_each("index", INDICES)
def test_indexing_a_tensor_that_is_not_there_has_the_shape_and_strides_of_a_real_one(index: Any) -> None:
    real = torch.arange(60.0).reshape(3, 4, 5).transpose(1, 2)
    expected = real[index]

    with FakeTensorMode() as mode, python_tensor_methods():
        moved = pytree.tree_map_only(torch.Tensor, mode.from_tensor, index)
        found = torch.empty_strided(real.shape, real.stride(), device="cuda:0")[moved]

    assert (tuple(found.shape), found.stride(), found.device.type) == (tuple(expected.shape), expected.stride(), "cuda")


def test_methods_that_ask_for_a_device_work_on_tensors_that_are_not_there() -> None:
    with FakeTensorMode(), python_tensor_methods():
        fake = torch.empty_strided((2, 3, 4), (12, 1, 3), device="cuda:0")

        assert fake.contiguous().stride() == (12, 4, 1)
        assert fake.transpose(1, 2).contiguous().stride() == (12, 3, 1)
        assert torch.empty_like(fake).copy_(fake).shape == (2, 3, 4)
        assert fake.new_tensor([1.0, 2.0]).device.type == "cuda"
        assert (~(fake > 0)).dtype == torch.bool
        fake[0] = 1.0
        fake[:, [0, 1]] = fake[:, 1:3]
        on_cpu = torch.empty(2, 3)
        assert on_cpu.t().contiguous().stride() == (2, 1)
