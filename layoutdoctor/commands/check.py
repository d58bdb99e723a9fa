"""``check``: prints the properties of this machine that influence a diagnosis, and what will not be recorded."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from layoutdoctor._version import __version__
from layoutdoctor.commands.output import for_others
from layoutdoctor.commands.streams import print_text, terminal_width
from layoutdoctor.errors import UnsupportedTorchError, needs_torch
from layoutdoctor.units import format_bytes
from layoutdoctor.words import count_of, listing

_LOOK_SECONDS = 0.5
_ALLOCATORS = re.compile(r"/lib(jemalloc|tcmalloc\w*|mimalloc)[^/]*\.so")
_DRIVER = Path("/proc/driver/nvidia/params")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Sets the description; there are no options."""
    parser.description = (
        "Prints the versions, the compiler, the GPU and the load of this machine, the settings that bear on layouts, "
        "and what a diagnosis here will not record. For bug reports about layoutdoctor itself."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the properties, each beside its name."""
    from layoutdoctor.workers.processes import OtherPrograms

    others = OtherPrograms()
    python = f"{platform.python_version()} ({sys.platform}, {platform.machine()})"
    rows = [("layoutdoctor", __version__), ("Python", python), *_of_torch()]
    time.sleep(max(0.0, _LOOK_SECONDS - others.elapsed))
    rows += _of_machine(others.cores)
    names = [name for name, _ in rows]
    wide, indent = terminal_width() or 100, 2 + max(map(len, names))
    for name, value in zip(names, for_others(tuple(value for _, value in rows)), strict=True):
        first = f"{name:<{indent}}"
        text = textwrap.fill(value, wide, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False)
        print_text(text + "\n")
    return 0


def _of_torch() -> Iterator[tuple[str, str]]:
    """Yields lines on torch, its compilers, its devices, and what this torch does not record."""
    try:
        with needs_torch():
            import torch

            from layoutdoctor.capture.compat import missing_cpp_compiler, notes_on_torch, triton_version
            from layoutdoctor.measure.environment import observed_environment, why_no_gpu
    except UnsupportedTorchError as error:
        yield "torch", str(error)
        return
    no_gpu = why_no_gpu(torch.device("cuda"))
    found = observed_environment("cpu" if no_gpu else "cuda", triton=triton_version(), command=None)
    try:
        notes = notes_on_torch(with_target=True)
    except UnsupportedTorchError as error:
        notes = (str(error),)
    yield "torch", f"{found.torch}; {'; '.join(notes) or 'every private name of torch that layoutdoctor uses exists'}"
    yield "triton", found.triton or "not installed: nothing can be compiled or lowered for a GPU"
    yield "compiler", missing_cpp_compiler() or str(found.compiler)
    has_onednn = torch.backends.mkldnn.is_available()
    capability = torch.backends.cpu.get_cpu_capability()
    yield "oneDNN", f"there ({capability})" if has_onednn else "not in this torch: convolutions run in ATen's own code"
    if no_gpu is not None:
        yield "GPU", f"none: {no_gpu}"
    else:
        limits = f"; its clock is low because of {listing(found.clock_limits)}" if found.clock_limits else ""
        yield "GPU", f"{found.device_name}, driver {found.driver}, CUDA {found.cuda}, cuDNN {found.cudnn}{limits}"
        with contextlib.suppress(OSError):
            if "RmProfilingAdminOnly: 1" in _DRIVER.read_text(encoding="ascii"):
                yield "profiler", "the driver may refuse it to all but root (NVreg_RestrictProfilingToAdminUsers=1)"
    yield "settings", ", ".join(f"{name}={value}" for name, value in found.settings.items())


def _of_machine(other_cores: float | None) -> Iterator[tuple[str, str]]:
    import psutil

    from layoutdoctor.workers.processes import BUSY_CORES

    nsys = shutil.which("nsys")
    yield "nsys", nsys or "not found: a report of Nsight Systems (.nsys-rep) cannot be read, an SQLite export can"
    loaded = _loaded_allocator()
    yield "allocator", f"{loaded} (loaded)" if loaded else "the C library's; no other was found"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    room = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} free"
    yield "machine", f"{count_of(usable, 'core')}, {room}"
    used = "not known" if other_cores is None else f"{other_cores:.1f} cores while this command ran"
    busy = "; so times will vary" if other_cores is not None and other_cores > BUSY_CORES else ""
    yield "other programs", used + busy


def _loaded_allocator() -> str | None:
    """Returns the allocator that this process loaded instead of the C library's, such as jemalloc; else None."""
    with contextlib.suppress(OSError):
        found = _ALLOCATORS.search(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
        return found[1] if found is not None else None
    return None
