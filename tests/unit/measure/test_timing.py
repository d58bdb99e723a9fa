from __future__ import annotations

import pytest
import torch

from layoutdoctor.errors import UsageError
from layoutdoctor.measure import timing
from layoutdoctor.measure.timing import choose_timer, cpu_timer, cuda_timer


class FakeGpu:
    """
    A GPU's clock and queue: the processor launches a step, then the GPU runs its kernels.

    Attributes:
        log: What was done, in order.
        now: The processor's time; milliseconds.
        free_at: When the GPU has done all that is queued.
    """

    launch, kernels, flush = 0.0, 0.0, 0.1

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.now = self.free_at = 0.0
        self.device = ""
        self.cold_milliseconds = 0.0
        self.is_cold = False
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                gpu.log.append("event")
                self.moment = max(gpu.now, gpu.free_at)

            def elapsed_time(self, other: Event) -> float:
                assert gpu.log[-1] == "synchronize"
                return other.moment - self.moment

        class Cache:
            def zero_(self) -> None:
                gpu.log.append("flush")
                gpu.is_cold = True
                gpu.free_at = max(gpu.now, gpu.free_at) + gpu.flush

        class Device:
            def __init__(self, device: str) -> None:
                gpu.device = device

            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "device", Device)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch, "empty", lambda *_, **__: Cache())
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now / 1000)

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.now = max(self.now, self.free_at)

    def step(self) -> None:
        """One kernel at once and one when all of the step is launched."""
        self.log.append("step")
        cold, self.is_cold = self.cold_milliseconds * self.is_cold, False
        self.free_at = max(self.now, self.free_at) + self.kernels / 2 + cold
        self.now += self.launch
        self.free_at = max(self.now, self.free_at) + self.kernels / 2


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_the_cuda_timer_warms_up_in_synchronised_steps_and_times_calls_with_the_cache_emptied_and_a_loop(
    gpu: FakeGpu,
) -> None:
    gpu.launch, gpu.kernels = 1.0, 9.0

    times = choose_timer("cuda:1")(gpu.step, 2)

    warming, flushed = ["step", "synchronize"] * 3, ["event", "flush", "event", "step", "event"]
    loop = ["event", "event", "step", "step", "event"]
    assert gpu.log == [*warming, *flushed, *flushed, "synchronize", *loop, "synchronize"]
    assert len(times) == 2
    assert gpu.device == "cuda:1"


def test_where_kernels_take_longer_the_time_is_that_with_cold_caches(gpu: FakeGpu) -> None:
    gpu.launch, gpu.kernels, gpu.cold_milliseconds = 0.05, 0.4, 0.1

    assert cuda_timer("cuda", gpu.step, 4) == pytest.approx([0.5e-3] * 4)


def test_where_launching_takes_longer_the_time_is_that_without_the_head_start_of_emptying_the_cache(
    gpu: FakeGpu,
) -> None:
    gpu.launch, gpu.kernels = 0.3, 0.1
    hidden = timing._between_events(gpu.step, 1, lambda: torch.empty(1).zero_(), 4)

    assert min(hidden) == pytest.approx(0.2e-3)
    assert cuda_timer("cuda", gpu.step, 4) == pytest.approx([0.3e-3] * 4, rel=0.02)  # and the last kernels of the loop
    assert gpu.log.count("step") > 50


def test_the_timer_follows_the_device() -> None:
    assert choose_timer("cpu") is cpu_timer
    with pytest.raises(UsageError, match="cannot time a model on device 'mps': expected cpu or cuda"):
        choose_timer("mps")
