from __future__ import annotations

import os
import platform
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from layoutdoctor.measure import environment
from layoutdoctor.measure.environment import (
    CardState,
    card_state,
    measure_copy_bandwidth,
    notes_on_gpu,
    observed_environment,
    processes_that_fit,
    why_no_gpu,
)
from layoutdoctor.privacy.scrubbing import scrub

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Environment


def described(command: str | None = None) -> Environment:
    return observed_environment("cpu", triton="3.7.1", command=command)


def test_versions_and_the_machine_are_recorded() -> None:
    found = described("layoutdoctor model.py")

    assert found.torch == torch.__version__
    assert found.python == platform.python_version()
    assert found.triton == "3.7.1"
    assert (found.thread_count, found.cpu_count) == (torch.get_num_threads(), os.cpu_count())
    assert found.command == "layoutdoctor model.py"
    assert platform.node() not in str(found.platform).split()


def test_a_gpu_is_left_alone_by_a_model_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: pytest.fail("uses CUDA"))

    assert described().cudnn is None


def test_a_cudnn_that_torch_refuses_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")

    assert observed_environment("cuda", triton=None, command=None).cudnn is None


def test_settings_that_bear_on_layouts_are_recorded_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    monkeypatch.setenv("MY_SECRET", "x")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with torch.backends.mkldnn.flags(enabled=False):
        settings = described().settings

    assert settings["TORCHINDUCTOR_FREEZING"] == "1"
    assert settings["torch.backends.mkldnn.enabled"] == "False"
    assert "MY_SECRET" not in settings
    assert "OMP_NUM_THREADS" not in settings


def test_of_a_gpu_its_own_name_driver_and_clock_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = CardState("580.95.05", 1980e6, ("the power cap",))
    monkeypatch.setattr(environment, "card_state", lambda device: state if device == "cuda:1" else CardState())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the card of {device}")
    found = scrub(observed_environment("cuda:1", triton=None, command=None))

    assert (found.device_name, found.driver, found.clock_hertz) == ("the card of cuda:1", "580.95.05", 1980e6)
    assert found.clock_limits == ("the power cap",)


def test_the_fastest_of_the_copies_counts_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.COPY_BYTES, "cpu", 4096)
    monkeypatch.setattr(environment, "choose_timer", lambda device: lambda copy, calls: [3e-6, 2e-6, 5e-6])

    assert measure_copy_bandwidth("cpu") == pytest.approx(2 * 4096 / 2e-6)
    monkeypatch.setattr(torch, "ones", mock.Mock(side_effect=RuntimeError("out of memory")))
    assert measure_copy_bandwidth("cpu") is None


GIB = 1 << 30
FIELDS = {"driver_version": "580.95.05", "clocks.sm": "1980"}


class Smi:
    """
    Stands in for nvidia-smi.

    Attributes:
        fields: What it knows; asked for anything else it fails, as the real one does.
        asked: The cards it was asked of.
    """

    def __init__(self, **fields: str) -> None:
        self.fields = {**FIELDS, **{name.replace("__", "."): value for name, value in fields.items()}}
        self.asked: list[str] = []

    def __call__(self, command: list[str], **options: Any) -> Any:
        assert options["timeout"] == 10.0
        self.asked.append(command[2])
        names = command[3].removeprefix("--query-gpu=").split(",")
        if not self.fields.keys() >= set(names):
            raise subprocess.CalledProcessError(2, command)
        return SimpleNamespace(stdout=", ".join(self.fields[name] for name in names) + "\n")


def answering(monkeypatch: pytest.MonkeyPatch, **fields: str) -> Smi:
    smi = Smi(**fields)
    monkeypatch.setattr(environment.subprocess, "run", smi)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"5e-{device}"))
    return smi


def with_context(monkeypatch: pytest.MonkeyPatch, free: int, total: int, reserved: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)


@pytest.mark.parametrize("name", ["clocks_event_reasons__active", "clocks_throttle_reasons__active"])
def test_driver_clock_and_what_holds_it_down_are_asked_of_nvidia_smi(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = answering(monkeypatch, **{name: "0x0000000000000045"})

    assert card_state("cuda:1") == CardState("580.95.05", 1980e6, ("the power cap", "heat, by hardware"))
    assert set(smi.asked) == {"GPU-5e-cuda:1"}
    assert card_state("cpu") == CardState()


def test_what_nvidia_smi_does_not_say_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, clocks_event_reasons__active="[N/A]", clocks__sm="[N/A]")
    assert card_state("cuda") == CardState("580.95.05")

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(environment.subprocess, "run", missing)
    assert card_state("cuda") == CardState()


def test_as_many_processes_fit_as_this_one_and_the_free_memory_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with_context(monkeypatch, free=79 * GIB, total=80 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 5 * GIB)

    assert processes_that_fit("cuda:1") == 1 + 9  # 0.7 * 79 GiB, each 5 GiB and a context
    assert processes_that_fit("cpu") == 0


def test_what_other_programs_hold_is_told_if_it_is_more_than_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    with_context(monkeypatch, free=10 * GIB, total=80 * GIB, reserved=20 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    assert notes_on_gpu("cuda:0") == (
        "other programs hold 50.0 GiB of cuda:0's memory: times vary while they run; end them, or name another GPU "
        "(--device)",
    )
    with_context(monkeypatch, free=79 * GIB + GIB // 2, total=80 * GIB)
    assert notes_on_gpu("cuda:0") == ()


def test_blocking_launches_and_a_part_of_a_gpu_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with_context(monkeypatch, free=GIB, total=GIB)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")

    assert notes_on_gpu("cuda:0") == (
        "CUDA_LAUNCH_BLOCKING=1: every launch waits for its kernel, so that short steps look slower than they are; "
        "unset it",
        "cuda:0 is a part of a GPU (MIG): its times do not hold for a whole GPU; diagnose on a whole GPU",
    )
    assert notes_on_gpu("cpu") == ()


@pytest.mark.parametrize(
    ("cuda", "count", "visible", "raised", "why"),
    [
        (None, 0, None, None, "torch 2.11.0 was built without CUDA; install a build with it (pytorch.org), or use cpu"),
        ("13.0", 1, None, None, "torch 2.11.0 sees cuda:0 only; use one of these, or cpu"),
        (
            "13.0",
            2,
            "4,5",
            None,
            "torch 2.11.0 sees cuda:0 to cuda:1 only, as CUDA_VISIBLE_DEVICES is '4,5'; use one of these, or cpu",
        ),
        (
            "13.0",
            0,
            "",
            "No CUDA GPUs are available",
            "torch 2.11.0 sees no GPU, as CUDA_VISIBLE_DEVICES is '' (RuntimeError: No CUDA GPUs are available); "
            "see whether nvidia-smi lists one, or use cpu",
        ),
    ],
    ids=["a CPU build", "one GPU", "hidden GPUs", "no GPU"],
)
def test_a_gpu_that_is_not_there_is_refused_with_what_to_do(
    cuda: str | None,
    count: int,
    visible: str | None,
    raised: str | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init() -> None:
        raise RuntimeError(raised)

    monkeypatch.setattr(torch, "__version__", "2.11.0")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert why_no_gpu(torch.device("cuda:7")) == why
    if count:
        assert why_no_gpu(torch.device("cuda:0")) is None
        assert why_no_gpu(torch.device("cuda")) is None
