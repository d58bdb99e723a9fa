"""Records the machine, versions and settings of a diagnosis, and a device's bandwidth, clock and free memory."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from layoutdoctor.diagnosis import Environment
from layoutdoctor.errors import first_line
from layoutdoctor.measure.timing import choose_timer, kind_of
from layoutdoctor.units import format_bytes

_VARIABLES = (
    "TORCHINDUCTOR_LAYOUT_OPTIMIZATION",
    "TORCHINDUCTOR_FORCE_LAYOUT_OPT",
    "TORCHINDUCTOR_KEEP_OUTPUT_STRIDE",
    "TORCHINDUCTOR_FREEZING",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_CPP_WRAPPER",
    "TORCH_COMPILE_DISABLE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDNN_LOGLEVEL_DBG",
)
"""Environment variables that change layouts, kernels or their times."""


def observed_environment(device: str, *, triton: str | None, command: str | None) -> Environment:
    """Records the environment of this process."""
    card = card_state(device)
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        triton=triton,
        cuda=None if torch.version.cuda is None else str(torch.version.cuda),
        driver=card.driver,
        cudnn=_cudnn_version(device),
        compiler=_compiler_version(),
        thread_count=torch.get_num_threads(),
        cpu_count=os.cpu_count(),
        device_name=torch.cuda.get_device_name(device) if kind_of(device) == "cuda" else _processor_name(),
        clock_hertz=card.clock_hertz,
        clock_limits=card.clock_limits,
        settings=_settings(),
        command=command,
    )


def _cudnn_version(device: str) -> str | None:
    if kind_of(device) != "cuda" or not torch.backends.cudnn.is_available():  # asking for the version uses CUDA
        return None
    with contextlib.suppress(RuntimeError):  # the library that was found is not the one torch was built with
        return str(torch.backends.cudnn.version())
    return None


def _compiler_version() -> str | None:
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if compiler is None:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=10, check=False)
        return next(iter(result.stdout.splitlines()), None)
    return None


def _processor_name() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or None


def _settings() -> dict[str, str]:
    backends = torch.backends
    return {
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "torch.backends.mkldnn.enabled": str(backends.mkldnn.enabled),
        "torch.backends.cudnn.benchmark": str(backends.cudnn.benchmark),
        "torch.backends.cudnn.deterministic": str(backends.cudnn.deterministic),
        "torch.backends.cudnn.allow_tf32": str(backends.cudnn.allow_tf32),
        "torch.backends.cuda.matmul.allow_tf32": str(backends.cuda.matmul.allow_tf32),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.backends.cpu.get_cpu_capability": backends.cpu.get_cpu_capability(),
    }


COPY_BYTES = {"cpu": 64 * 1024**2, "cuda": 256 * 1024**2}
"""Size of the copied tensor, by type of device: larger than the last-level cache of a usual machine."""

REPETITIONS = 5

_WARM_UP_SECONDS = 0.5
"""Time that an idle GPU may need to raise the clock of its memory."""


def measure_copy_bandwidth(device: str) -> float | None:
    """Measures bytes (read plus written) per second of the fastest of several copies; None if memory is too small."""
    size = COPY_BYTES[kind_of(device)]
    try:
        source = torch.ones(size // 4, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        target.copy_(source)
        end = time.perf_counter() + _WARM_UP_SECONDS
        while kind_of(device) == "cuda" and time.perf_counter() < end:
            target.copy_(source)
            torch.cuda.synchronize(device)
        return 2 * size / min(choose_timer(device)(lambda: target.copy_(source), REPETITIONS))
    except RuntimeError:  # out of memory
        return None


_SMI_SECONDS = 10.0
_LIMITS = {
    0x0002: "the clock that was set",
    0x0004: "the power cap",
    0x0008: "a hardware slowdown",
    0x0010: "the slowest GPU of a group",
    0x0020: "heat, by software",
    0x0040: "heat, by hardware",
    0x0080: "the power supply",
    0x0100: "the clock of the display",
}
"""Bits of nvidia-smi's ``clocks_event_reasons.active`` in words, without bit 1, an idle GPU. Source: nvml.h."""
_WORTH_A_NOTE_BYTES = 1 << 30  # the context of this process takes about half of this size


class CardState(NamedTuple):
    """The state of a GPU by nvidia-smi: version of the driver, clock, and the reasons why the clock is low."""

    driver: str | None = None
    clock_hertz: float | None = None
    clock_limits: tuple[str, ...] = ()


def card_state(device: str) -> CardState:
    """
    Asks nvidia-smi for the state of a GPU that this process uses; call it before the GPU lowers its clock again.

    Returns:
        An empty state on a CPU, and if nvidia-smi is missing or fails.
    """
    if kind_of(device) != "cuda":
        return CardState()
    # Drivers before 535 know only the second name.
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        with contextlib.suppress(Exception):  # no nvidia-smi, or it does not know one of the fields
            unique = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
            asked = [f"--query-gpu=driver_version,clocks.sm,{reasons}", "--format=csv,noheader,nounits"]
            command = ["nvidia-smi", "-i", f"GPU-{unique}", *asked]
            found = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
            driver, clock, limits = (value.strip() for value in found.stdout.split(","))
            bits = int(limits, 16) if limits.startswith("0x") else 0
            names = tuple(words for bit, words in _LIMITS.items() if bits & bit)
            return CardState(driver, 1e6 * int(clock) if clock.isdecimal() else None, names)
    return CardState()


_SAFE_SHARE = 0.7  # compiled code and other memory formats may need more than eager mode
_CONTEXT_BYTES = 600 << 20
"""Approximate GPU memory that a process takes before its first tensor: context, libraries, kernels."""


def processes_that_fit(device: str) -> int:
    """Estimates how many processes like this one fit into a GPU's memory at once; 0 on a CPU, or if not known."""
    if kind_of(device) == "cuda":
        with contextlib.suppress(Exception):  # without an answer, the number is not known
            free, _ = torch.cuda.mem_get_info(device)
            return 1 + int(_SAFE_SHARE * free / (torch.cuda.max_memory_reserved(device) + _CONTEXT_BYTES))
    return 0


def notes_on_gpu(device: str) -> tuple[str, ...]:
    """Lists facts that make times of a GPU less reliable, each with advice; empty on a CPU."""
    if kind_of(device) != "cuda":
        return ()
    notes = []
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        notes.append(
            "CUDA_LAUNCH_BLOCKING=1: every launch waits for its kernel, so that short steps look slower than they are; "
            "unset it"
        )
    with contextlib.suppress(Exception):  # a device that does not answer, or is lost
        free, total = torch.cuda.mem_get_info(device)
        held = total - free - torch.cuda.memory_reserved(device)
        if held > _WORTH_A_NOTE_BYTES:
            notes.append(
                f"other programs hold {format_bytes(held)} of {device}'s memory: times vary while they run; end "
                "them, or name another GPU (--device)"
            )
        if " MIG " in torch.cuda.get_device_name(device):
            notes.append(
                f"{device} is a part of a GPU (MIG): its times do not hold for a whole GPU; diagnose on a whole GPU"
            )
    return tuple(notes)


def why_no_gpu(device: torch.device) -> str | None:
    """Explains why a GPU cannot be used, and what to do; None if it can be used."""
    with warnings.catch_warnings():  # torch warns about a driver that is too old
        warnings.simplefilter("ignore")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return None
    version = f"torch {torch.__version__}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f", as CUDA_VISIBLE_DEVICES is {visible!r}"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"{version} was built without CUDA; install a build with it (pytorch.org), or use cpu"
    if count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        return f"{version} sees {known} only{hidden}; use one of these, or cpu"
    reason = "no GPU was found"
    try:
        torch.cuda.init()
    except Exception as error:
        reason = first_line(error)
    return f"{version} sees no GPU{hidden} ({reason}); see whether nvidia-smi lists one, or use cpu"
