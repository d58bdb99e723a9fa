"""
Compiles a file of the casebook under capture: what was captured as JSON. With ``TORCH_TRACE`` set, torch logs the same.

    python tests/traced_capture.py FILE inference|training OUT

Kernels in C++ are not compiled, so nothing that the model returns means anything.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path

import msgspec
import torch
from torch._inductor.async_compile import AsyncCompile

from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.session import CompileCapture

if __name__ == "__main__":
    file, mode, out = sys.argv[1:]
    AsyncCompile.cpp_pybinding = lambda *_: lambda *_: None  # type: ignore[assignment, misc]
    names = runpy.run_path(file)
    model = names["Model"](*names["get_init_inputs"]()).train(mode == "training")
    is_gradient_wanted = contextlib.nullcontext() if mode == "training" else torch.no_grad()
    with compile_settings({}), CompileCapture() as capture, is_gradient_wanted:
        results = torch.utils._pytree.tree_leaves(torch.compile(model)(*names["get_inputs"]()))
        if mode == "training":
            sum(result.sum() for result in results if result.requires_grad).backward()
    Path(out).write_bytes(msgspec.json.encode(capture.graphs))
