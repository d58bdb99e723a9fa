"""A GPU that is not there: what is pretended, that all of it is undone, and cuDNN's rule against torch's own code."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import pytest
import torch
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils import _triton

from layoutdoctor.capture.retarget_device import (
    cudnn_formats,
    pretended_device,
    python_tensor_methods,
)
from layoutdoctor.diagnosis.gpus import GPUS, find_gpu

H100 = find_gpu("cuda:90")


def test_a_device_is_pretended_within_the_block_only() -> None:
    for raises in (False, True):
        DeviceProperties.create.cache_clear()
        before = torch.cuda.get_device_capability, _triton.has_triton(), dict(vars(FakeTensor))

        with contextlib.suppress(ZeroDivisionError), pretended_device(H100):
            assert torch.cuda.get_device_capability() == (9, 0)
            assert DeviceProperties.create(torch.device("cuda", 0)).multi_processor_count == 132
            assert _triton.has_triton()
            1 / (not raises)

        assert before == (torch.cuda.get_device_capability, _triton.has_triton(), dict(vars(FakeTensor)))
        assert DeviceProperties.create.cache_info().currsize == 0


def test_a_build_for_cuda_without_a_gpu_is_not_asked_for_memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_nvml_based_avail", lambda: True)  # as workers set it
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pretended_device(H100), FakeTensorMode():
        assert (torch.cuda.device_count(), torch.cuda.is_available()) == (1, False)
        assert torch.empty(2, device="cuda:0").device.type == "cuda"
    assert not torch.cuda.is_available()


def test_every_target_is_pretended_with_a_capability_that_triton_knows() -> None:
    for target in GPUS:
        major, minor = target.capability
        with pretended_device(target):
            properties = DeviceProperties.create(torch.device("cuda", 0))
        assert (target.name, properties.cc) == (f"cuda:{properties.cc}", 10 * major + minor)
        assert target.shared_bytes_per_block <= target.shared_bytes_per_multiprocessor
    assert [target.name for target in GPUS] == sorted({t.name for t in GPUS}, key=lambda name: int(name[5:]))


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


@pytest.mark.parametrize("index", INDICES)
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
