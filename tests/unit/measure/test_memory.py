from __future__ import annotations

import pytest
import torch

from layoutdoctor.measure.memory import out_of_memory, peak_memory

MEGABYTE = 1_000_000


def test_what_an_iteration_holds_at_once_is_its_peak_where_the_profile_says_it() -> None:
    kept = torch.ones(MEGABYTE)  # what was there before does not count

    def step() -> None:
        torch.neg(kept[:1])
        first = torch.empty(MEGABYTE, dtype=torch.uint8)
        second = torch.empty(2 * MEGABYTE, dtype=torch.uint8)
        del first, second
        third = torch.empty(MEGABYTE, dtype=torch.uint8)
        del third

    assert peak_memory(step, "cpu") == 3 * MEGABYTE
    assert peak_memory(lambda: None, "cpu") is None


def test_on_a_gpu_the_start_is_taken_off_the_peak_and_both_ends_are_synchronised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    def logged(name: str, value: int | None = None) -> None:
        def call(device: str) -> int | None:
            log.append(f"{name} {device}")
            return value

        monkeypatch.setattr(torch.cuda, name, call)

    logged("synchronize")
    logged("memory_allocated", 100)
    logged("reset_peak_memory_stats")
    logged("max_memory_allocated", 164)

    assert peak_memory(lambda: log.append("step"), "cuda:1") == 64
    assert log == [
        "synchronize cuda:1",
        "memory_allocated cuda:1",
        "reset_peak_memory_stats cuda:1",
        "step",
        "synchronize cuda:1",
        "max_memory_allocated cuda:1",
    ]


class WrappedError(Exception):
    def __init__(self, inner: BaseException) -> None:
        super().__init__("backend failed")
        self.inner_exception = inner


CPU_ERROR = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "40000000000 bytes. Error code 12 (Cannot allocate memory)"
)
GPU_ERROR = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of 8 GiB"
)

RAISED_FROM_IT = ValueError("cannot lower the graph")
RAISED_FROM_IT.__cause__ = CPU_ERROR


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CPU_ERROR, "out of memory: 37.3 GiB were asked for"),
        (GPU_ERROR, "out of memory: 20.5 GiB were asked for"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out of memory"),
        (MemoryError(), "out of memory"),
        (WrappedError(CPU_ERROR), "out of memory: 37.3 GiB were asked for"),
        (RAISED_FROM_IT, "out of memory: 37.3 GiB were asked for"),
        (ValueError("out of memory"), ""),
        (RuntimeError("shapes do not match"), ""),
    ],
)
def test_an_exception_says_whether_memory_ran_out(error: BaseException, words: str) -> None:
    assert out_of_memory(error) == words


def test_torch_says_on_a_cpu_that_memory_ran_out_in_a_way_that_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 49, dtype=torch.uint8)

    assert out_of_memory(caught.value) == "out of memory: 512 TiB were asked for"
