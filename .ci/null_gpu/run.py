"""
Runs a command on a machine without a GPU as if it had one: what a build of torch for CUDA asks of one is answered.

    python .ci/null_gpu/run.py PYTHON COMMAND...
    python .ci/null_gpu/run.py /tmp/env/bin/python -m pytest -m gpu tests/gpu
    python .ci/null_gpu/run.py /tmp/env/bin/python benchmarks/gpu.py run OUT --plan first --small

PYTHON is one that has torch for CUDA 13 from PyPI, whose packages bring the headers; `.ci/version_matrix.py --keep`
makes such environments. Nothing is computed: new memory holds zeros, so no output is right, but all are equal.
Compiling, capture, processes, memory, kernel lists and failures are real; times and conversions inside cuDNN are made
up. What Inductor compiles is what it would compile for such a GPU: a lowering for a target can be held against it.

CUDA graphs need torch's allocator, which hands old values out: PYTORCH_NO_CUDA_MEMORY_CACHING=0. `null_gpu.cpp` lists
what else can be set.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("null_gpu.cpp")
LIBRARIES = ("torch_cuda", "c10_cuda", "torch_python", "torch_cpu", "torch_cuda_linalg")
NEEDED = re.compile(r"\b((?:__cuda|cuda(?=[A-Z])|cudnn(?=[A-Z])|cublas(?=[A-Z])|cupti(?=[A-Z]))\w+)")
TARGET = """\
#pragma once
#define NV_IF_TARGET(...)
#define NV_IF_ELSE_TARGET(condition, then, otherwise) otherwise
#define NV_DISPATCH_TARGET(...)
"""
"""In place of a header of CUDA's own C++ library, which no package brings."""


NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
*driver_version*) echo 580.95.05, 1980, 0x0 ;;
*) echo 1980, 2619, 35, 120, 600, 0x0 ;;
esac
"""


def main() -> int:
    """Builds the library for the Python that is named, and runs the command with it."""
    packages = Path(output(sys.argv[1], "-c", "import torch; print(torch.__path__[0])").strip()).parent
    with tempfile.TemporaryDirectory(prefix="null-gpu-") as folder:
        library = build(packages, Path(folder))
        smi = Path(folder, "nvidia-smi")
        smi.write_text(NVIDIA_SMI, encoding="utf-8")
        smi.chmod(0o755)
        environment = {
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "NULL_GPU_SHARED": str(Path(folder, "shared")),
            **os.environ,
            "LD_LIBRARY_PATH": folder,
            "LD_PRELOAD": str(library),
            "TRITON_LIBCUDA_PATH": folder,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        }
        if environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "0":
            del environment["PYTORCH_NO_CUDA_MEMORY_CACHING"]  # torch asks only whether it is there
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


def build(packages: Path, folder: Path) -> Path:
    """The library; what torch links to and the source lacks does nothing."""
    (folder / "nv").mkdir()
    (folder / "nv" / "target").write_text(TARGET, encoding="utf-8")
    headers = ("nvidia/cu13/include", "nvidia/cudnn/include", "triton/backends/nvidia/include")
    places = [f"-I{place}" for place in (folder, *(packages / path for path in headers))]
    library, own, rest = (str(folder / name) for name in ("libcuda.so.1", "own.o", "rest.o"))
    output("g++", "-std=c++17", "-fPIC", "-O1", "-w", *places, "-c", str(SOURCE), "-o", own)
    there = {line.split()[-1] for line in output("nm", "--defined-only", own).splitlines()}
    linked = [path for path in (packages / f"torch/lib/lib{name}.so" for name in LIBRARIES) if path.exists()]
    needed = {name for path in linked for name in NEEDED.findall(output("nm", "-D", "--undefined-only", str(path)))}
    source = folder / "rest.c"
    source.write_text("\n".join(f"int {name}() {{ return 0; }}" for name in sorted(needed - there)), encoding="utf-8")
    output("gcc", "-fPIC", "-w", "-c", str(source), "-o", rest)
    output("g++", "-shared", own, rest, "-o", library, "-Wl,-soname,libcuda.so.1", "-ldl", "-lpthread")
    (folder / "libnvidia-ml.so.1").symlink_to(library)
    return Path(library)


def output(*command: str) -> str:
    """What a command prints; raises if it fails."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
