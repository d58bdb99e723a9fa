from __future__ import annotations

import gc
import os
import resource
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutdoctor.isolation import processes
from layoutdoctor.isolation.processes import available_bytes
from layoutdoctor.measure import memory
from layoutdoctor.measure.memory import (
    Need,
    available_memory,
    highest_sum,
    out_of_memory,
    peak_memory,
    release_memory,
    resident_peak,
    why_too_little,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MEGABYTE = 1_000_000


@given(st.lists(st.integers(min_value=-1000, max_value=1000)))
def test_the_highest_sum_is_that_of_some_beginning(changes: Sequence[int]) -> None:
    assert highest_sum(changes) == max(sum(changes[:end]) for end in range(len(changes) + 1))


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
    assert peak_memory(lambda: None, "mps") is None


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


def test_a_profile_leaves_standard_error_clean(capfd: pytest.CaptureFixture[str]) -> None:
    kept = [torch.empty(1000)]

    def step() -> None:
        os.write(2, b"a line of the model's own\n")
        kept[0] = torch.empty(1000)  # frees what was allocated before the profile, of which torch warns

    peak_memory(step, "cpu")

    assert capfd.readouterr().err == "a line of the model's own\n"


GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"
STATUS = "Name:\tpython\nVmSize:\t 4194304 kB\nVmData:\t 2097152 kB\nVmHWM:\t 1000 kB\nVmRSS:\t 900 kB\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB available, a process of 4 GiB, and no limits; as files."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/status").write_text(STATUS)
    (tmp_path / "proc/self/cgroup").write_text("")
    monkeypatch.setattr(processes, "_PROCESSES", tmp_path / "proc")
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return tmp_path


def a_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_limits_it_is_what_the_kernel_can_give_and_where_nothing_says_it_nobody_knows(machine: Path) -> None:
    assert available_memory("cpu") == 8 * GIB
    for name in ("meminfo", "self/cgroup", "self/status"):
        (machine / "proc" / name).unlink()

    assert available_memory("cpu") is available_bytes() is None
    assert available_memory("mps") is None
    assert why_too_little(Need((("weights", 1 << 60),)), "cpu") is None


def test_a_control_group_leaves_its_limit_less_its_use_and_file_pages_do_not_count(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("0::/jobs/mine\n")
    jobs = machine / "cgroup/jobs"
    a_group(jobs, memory__max=f"{5 * GIB}\n", memory__current=f"{3 * GIB}\n")
    a_group(
        jobs / "mine",
        memory__max="max\n",
        memory__current="1000\n",
        memory__stat=f"anon 7\ninactive_file {GIB}\nactive_file 3\n",
    )
    assert available_memory("cpu") == 2 * GIB  # the parent's limit
    assert available_bytes() == 2 * GIB  # for a process that is to be started, too

    (jobs / "mine/memory.max").write_text(f"{GIB}\n")
    (jobs / "mine/memory.current").write_text(f"{GIB + GIB // 2}\n")
    assert available_memory("cpu") == GIB // 2

    (jobs / "mine/memory.stat").write_text("inactive_file many\n")
    assert available_memory("cpu") == 0  # already over it


def test_in_a_container_its_group_is_the_root_of_what_is_mounted(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("0::/../../docker/0123\n")
    a_group(machine / "cgroup", memory__max=f"{6 * GIB}\n", memory__current=f"{5 * GIB}\n")

    assert available_memory("cpu") == GIB


def test_control_groups_of_the_first_version_have_other_names(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("9:cpu,cpuacct:/x\n5:memory:/docker/0123\nnonsense\n")
    a_group(
        machine / "cgroup/memory/docker/0123",
        memory__limit_in_bytes=f"{4 * GIB}\n",
        memory__usage_in_bytes=f"{3 * GIB}\n",
        memory__stat=f"total_inactive_file {GIB}\n",
    )

    assert available_memory("cpu") == 2 * GIB


@pytest.mark.parametrize(
    ("limit", "soft", "left"),
    [(resource.RLIMIT_AS, 7 * GIB, 3 * GIB), (resource.RLIMIT_DATA, 7 * GIB, 5 * GIB), (resource.RLIMIT_AS, GIB, 0)],
)
def test_a_limit_of_the_process_leaves_what_it_has_not_taken(
    machine: Path, monkeypatch: pytest.MonkeyPatch, limit: int, soft: int, left: int
) -> None:
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (soft if asked == limit else infinite, infinite))

    assert available_memory("cpu") == left
    assert available_bytes() == 8 * GIB  # a new process has taken nothing of its own limit


def raising(device: str) -> Any:
    raise RuntimeError("CUDA error: unspecified launch failure")


def test_on_a_gpu_what_torch_holds_unused_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)

    assert available_memory("cuda:0") == 40
    monkeypatch.setattr(torch.cuda, "mem_get_info", raising)
    assert available_memory("cuda:0") is None


def test_too_little_is_told_with_what_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: 6 * GIB)
    need = Need((("weights", 10 * GIB), ("gradients", 0), ("activations", GIB)))

    assert why_too_little(need, "cpu") == (
        "11.0 GiB beside what is in use (10.0 GiB of weights, 1.00 GiB of activations), 6.00 GiB are free"
    )
    assert why_too_little(Need((("weights", 6 * GIB),)), "cpu") is None  # it just fits


def test_what_lies_unused_is_let_go_of_before_anything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        pass

    cycle: Any = Cycle()
    cycle.itself = cycle
    alive = weakref.ref(cycle)
    del cycle
    monkeypatch.setattr(memory, "available_memory", lambda device: 10 if alive() is None else 5)
    gc.disable()
    try:
        assert why_too_little(Need((("weights", 8),)), "cpu") is None
    finally:
        gc.enable()


def test_a_gpus_allocator_gives_back_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []

    def empty() -> None:
        emptied.append("emptied")
        raise RuntimeError("CUDA error: the device is lost")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty)

    release_memory()

    assert emptied == ["emptied"]


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
        (ValueError("out of memory"), None),
        (RuntimeError("shapes do not match"), None),
    ],
)
def test_an_exception_says_whether_memory_ran_out(error: BaseException, words: str | None) -> None:
    assert out_of_memory(error) == words


def test_torch_says_on_a_cpu_that_memory_ran_out_in_a_way_that_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 49, dtype=torch.uint8)

    assert out_of_memory(caught.value) == "out of memory: 512 TiB were asked for"


def test_a_first_run_takes_what_the_process_grew_by(machine: Path) -> None:
    def run() -> None:
        (machine / "proc/self/status").write_text(STATUS.replace(" 1000 kB", " 5000 kB"))

    assert resident_peak(run, "cpu") == (5000 - 900) * 1024


def test_nobody_knows_what_a_run_takes_in_a_process_that_was_larger_before(machine: Path) -> None:
    calls: list[int] = []

    assert resident_peak(lambda: calls.append(1), "cpu") is None
    assert resident_peak(lambda: calls.append(1), "mps") is None
    (machine / "proc/self/status").unlink()
    assert resident_peak(lambda: calls.append(1), "cpu") is None
    assert len(calls) == 3
