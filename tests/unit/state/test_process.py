from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config

from layoutdoctor.state.process import preserved_state
from layoutdoctor.state.randomness import seeded


def snapshot() -> dict[str, Any]:
    return {
        "torch random": torch.get_rng_state().tolist(),
        "python random": random.getstate(),
        "numpy random": np.random.get_state()[1].tolist(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled),
        "mkldnn": torch.backends.mkldnn.enabled,
        "filters": list(warnings.filters),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "log": logging.getLogger("torch._inductor").level,
        "inductor": inductor_config.get_config_copy(),
        "dynamo": dynamo_config.get_config_copy(),
        "functorch": functorch_config.get_config_copy(),
    }


def disturb_everything() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.mkldnn.set_flags(False)
    warnings.simplefilter("ignore")
    os.environ["LAYOUTDOCTOR_TEST_VALUE"] = "1"
    os.environ.pop("PATH", None)
    sys.path.insert(0, "nowhere")
    sys.argv.append("more")
    logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)
    inductor_config.layout_optimization = not inductor_config.layout_optimization
    inductor_config.cpp.threads = 7
    dynamo_config.recompile_limit = 99
    functorch_config.donated_buffer = not functorch_config.donated_buffer


def different(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    return {name for name in first if first[name] != second[name]}


def test_everything_a_diagnosis_may_disturb_is_put_back() -> None:
    before = snapshot()

    with preserved_state():
        disturb_everything()
        during = snapshot()

    assert different(before, during) == set(before)
    assert different(before, snapshot()) == set()


def test_it_is_put_back_when_the_block_raises() -> None:
    before = snapshot()

    def fail() -> None:
        with preserved_state():
            disturb_everything()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert different(before, snapshot()) == set()


def test_a_warning_filter_of_the_block_does_not_stay_in_effect() -> None:
    with preserved_state():
        warnings.simplefilter("ignore")
        warnings.warn("within", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="after"):
        warnings.warn("after", UserWarning, stacklevel=1)


def test_a_seeded_block_is_reproducible_and_leaves_no_trace() -> None:
    before = snapshot()

    draws = []
    for _ in range(2):
        with seeded(3):
            draws.append((torch.rand(2).tolist(), random.random(), float(np.random.rand())))

    assert draws[0] == draws[1]
    assert different(before, snapshot()) == set()


STREAMS = """
import os, sys
from layoutdoctor.state.process import preserved_state

print("before", flush=True)
with preserved_state():
    {damage}
print("after")
print("error after", file=sys.stderr)
sys.exit(0 if sys.stdout is sys.__stdout__ else 3)
"""


def test_what_is_printed_afterwards_arrives() -> None:
    damage = "os.close(2); os.dup2(os.open(os.devnull, os.O_WRONLY), 1); sys.stdout = sys.__stdout__ = None"
    ended = subprocess.run(
        [sys.executable, "-c", STREAMS.format(damage=damage)], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "before\nafter\n"), ended.stderr
    assert "error after" in ended.stderr


def test_a_stream_that_was_closed_before_stays_closed() -> None:
    code = STREAMS.format(damage="pass").replace("import os, sys", "import os, sys; os.close(0); sys.stdin = None")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (0, "before\nafter\n"), ended.stderr


def test_a_folder_that_is_gone_is_not_gone_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with preserved_state():
        os.chdir(tmp_path)

    assert Path.cwd() == tmp_path


def test_what_cannot_be_put_back_is_said_and_the_rest_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    monkeypatch.chdir(start)
    level = logging.getLogger("torch._inductor").level

    def disturb() -> None:
        with preserved_state():
            os.chdir(tmp_path)
            start.rmdir()
            logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)
            torch.set_default_dtype(torch.float64)

    with pytest.warns(RuntimeWarning, match=r"not put back after the diagnosis: environment or folder \(File"):
        disturb()

    assert logging.getLogger("torch._inductor").level == level
    assert torch.get_default_dtype() == torch.float32


def test_another_torch_that_lacks_a_name_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "is_autocast_cache_enabled")
    before = random.getstate()

    def disturb() -> None:
        with preserved_state():
            random.seed(1)

    with pytest.warns(RuntimeWarning, match=r"torch's modes \(AttributeError"):
        disturb()

    assert random.getstate() == before
