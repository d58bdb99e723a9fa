"""The machine, versions and settings that a verdict holds for, and the bandwidth that a copy reaches on a device."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import torch

from layoutdoctor.diagnosis.subject import Environment
from layoutdoctor.measure.gpu import card_state
from layoutdoctor.measure.timing import choose_timer, kind_of

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
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDNN_LOGLEVEL_DBG",
)
"""Environment variables that change layouts, kernels or their times."""


def describe_environment(
    device: str, *, triton: str | None, onednn: tuple[str | None, str | None], command: str | None
) -> Environment:
    """
    The environment of this process.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        onednn: oneDNN's version and instruction set, as its log said.
        command: The command line; None from Python.
    """
    card = card_state(device)
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        triton=triton,
        cuda=None if torch.version.cuda is None else str(torch.version.cuda),
        driver=card.driver,
        cudnn=_cudnn_version(),
        onednn=onednn[0],
        onednn_isa=onednn[1],
        compiler=_compiler_version(),
        thread_count=torch.get_num_threads(),
        cpu_count=os.cpu_count(),
        device_name=torch.cuda.get_device_name(device) if kind_of(device) == "cuda" else _processor_name(),
        clock_hertz=card.clock_hertz,
        clock_limits=card.clock_limits,
        settings=_settings(),
        command=command,
    )


def _cudnn_version() -> str | None:
    if not torch.backends.cudnn.is_available():
        return None
    version = torch.backends.cudnn.version()
    return None if version is None else str(version)


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
"""Size of the copied tensor: larger than the last cache of the usual machine of that kind."""

REPETITIONS = 5

_WARM_UP_SECONDS = 0.5
"""Until then a GPU that was idle may not have raised the clock of its memory."""


def measure_copy_bandwidth(device: str) -> float | None:
    """
    Bytes read plus bytes written per second by a copy of a large tensor: the best of a few.

    Returns:
        None on a device that is not known, or where there is no room for the tensors.
    """
    size = COPY_BYTES.get(kind_of(device))
    if size is None:
        return None
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
