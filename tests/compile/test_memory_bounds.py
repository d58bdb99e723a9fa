"""What a diagnosis holds at once: copies of the weights, gradients, and what stays when it is over."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from live_trials import diagnosed_here
from torch import nn

import layoutdoctor
from layoutdoctor.diagnosis.configurations import DEFAULT_CONFIGURATIONS
from layoutdoctor.isolation.messages import Request
from layoutdoctor.measure import memory
from layoutdoctor.subjects.subject import subject_from_python
from layoutdoctor.subjects.weights import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from layoutdoctor.diagnosis.records import Diagnosis, Mode

WEIGHT_SHAPE = (13, 11, 3, 5)  # like no other tensor here
X = torch.randn(2, 11, 9, 9, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution whose weight can be told from all other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(11, 13, (3, 5), padding=(1, 2))
        self.last = nn.Conv2d(13, 11, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.convolution(x)))


class Census:
    """Counts, at every turn of the timing, in how many places weights and gradients of that shape lie."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.gradients: list[int] = []

    def __call__(self, step: Callable[[], None], calls: int) -> tuple[float, ...]:
        for _ in range(calls):
            step()
        self.count()
        return (1e-3,) * calls

    def count(self) -> None:
        # By type: the compiler's stand-ins have no memory, and a lazy proxy is not to be asked what it is.
        tensors = [item for item in gc.get_objects() if type(item) in (torch.Tensor, nn.Parameter)]
        weights = [tensor for tensor in tensors if tuple(tensor.shape) == WEIGHT_SHAPE]
        self.places.append(len({tensor.untyped_storage().data_ptr() for tensor in weights}))
        self.gradients.append(sum(tensor.is_leaf and tensor.grad is not None for tensor in weights))


def diagnosed(model: nn.Module, census: Census, mode: Mode, *, is_ours: bool = False) -> Diagnosis:
    subject = replace(subject_from_python(model, X), is_ours=is_ours)
    # Those that freeze keep the constants that torch makes of the weights on top.
    unfrozen = tuple(one for one in DEFAULT_CONFIGURATIONS if not one.freezes)
    return diagnosed_here(subject, Request(mode=mode, configurations=unfrozen, budget_seconds=0.01), timer=census)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "is_ours", "most"), [("inference", False, 4), ("training", True, 2)])
def test_all_configurations_live_on_two_copies_of_the_weights(mode: Mode, is_ours: bool, most: int) -> None:
    model = Net()
    before = {name: (p.detach().flatten().clone(), p.stride(), p.data_ptr()) for name, p in model.named_parameters()}
    census = Census()

    diagnosis = diagnosed(model, census, mode, is_ours=is_ours)

    measured = [trial for trial in diagnosis.trials if trial.measurement is not None]
    assert len(measured) >= 4, [trial.failure for trial in diagnosis.trials]
    assert {trial.equivalence.status for trial in measured if trial.equivalence is not None} == {"equal"}
    assert len(census.places) > len(measured)
    assert max(census.places) == most  # the caller's own among them, and what would be put back into it
    assert max(census.gradients) == 0  # let go of after each call
    for name, parameter in model.named_parameters():
        values, strides, place = before[name]
        assert torch.equal(parameter.flatten(), values)
        assert (parameter.stride(), parameter.data_ptr(), parameter.grad) == (strides, place, None)
    del diagnosis, measured
    gc.collect()
    census.count()
    assert census.places[-1] == 1  # nothing of ours is left


class Merging(Net):
    """Doubles its weight in every call, as nobody should; a copy shared by two configurations would be wrong in one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.convolution.weight.mul_(2)
        return super().forward(x)


def test_configurations_of_a_model_that_changes_its_weights_do_not_see_each_other() -> None:
    diagnosis = layoutdoctor.diagnose(
        Merging(), X, configurations=("eager", "eager-channels-last", "inductor"), budget_seconds=0.01, isolate=False
    )

    assert [trial.equivalence.status for trial in diagnosis.trials if trial.equivalence] == ["equal"] * 3
    assert any("changes 1 of its weights in place" in note for note in diagnosis.subject.notes)


def test_a_format_whose_weights_do_not_fit_costs_its_configurations_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SharedTensors.need
    asked: list[str] = []

    def need(self: Any, choice: Any) -> memory.Need:
        asked.append(choice)
        return original(self, choice) if choice == "preserve" else memory.Need((("weights in channels_last", 1 << 49),))

    monkeypatch.setattr(SharedTensors, "need", need)

    diagnosis = layoutdoctor.diagnose(
        Net(),
        X,
        configurations=("eager", "eager-channels-last", "inductor-channels-last"),
        budget_seconds=0.01,
        isolate=False,
    )

    eager, *others = diagnosis.trials
    assert (eager.status, [trial.status for trial in others]) == ("ok", ["failed", "failed"])
    assert eager.measurement is not None
    for trial in others:
        assert trial.failure is not None
        assert trial.failure.kind == "prepare"
        assert trial.failure.message.startswith(
            f"cannot run {trial.configuration.name}: it needs 512 TiB beside what is in use (512 TiB of weights in"
        )
    assert asked == ["preserve", "channels_last", "channels_last"]


@pytest.mark.slow
def test_a_model_of_5_gb_is_refused_where_there_is_no_room_for_a_copy() -> None:
    code = (
        "import resource, sys, torch, layoutdoctor\n"
        "from layoutdoctor.run.diagnose import diagnose\n"
        "class Large(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.empty(5 << 28))\n"  # 5 GiB that nobody touches
        "    def forward(self, x):\n"
        "        raise SystemExit('it was run')\n"
        "pages = [line for line in open('/proc/self/status') if line.startswith('VmSize')][0].split()[1]\n"
        "resource.setrlimit(resource.RLIMIT_AS, (int(pages) * 1024 + (8 << 30),) * 2)\n"
        "try:\n"
        "    diagnose(Large(), torch.ones(2), isolate=False)\n"
        "except layoutdoctor.LayoutDoctorError as error:\n"
        "    print(error.exit_status, error)\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)

    refused, resident = ended.stdout.splitlines()
    assert refused.startswith("3 cannot diagnose Large: on cpu it needs at least 5.00 GiB beside what is in use ")
    assert " GiB are free; diagnose it on a machine with more memory" in refused
    assert int(resident) < 2 << 20  # kB: nothing was copied
    assert ended.returncode == 0, ended.stderr


REFERENCE_PEAK = """
import re, sys, torch
from layoutdoctor.run.rehearsal import check_runs, compute_reference
from layoutdoctor.subjects.subject import subject_from_python

def resident(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

def rehearsed(width, count):
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))
    subject = subject_from_python(model, torch.randn(2, width))
    open("/proc/self/clear_refs", "w").write("5")  # the highest so far is forgotten
    before = resident("VmRSS")
    reference = compute_reference(subject, sys.argv[1], check_runs(subject, sys.argv[1]))
    assert (reference.name, reference.notes) == ("float64", ())
    return (resident("VmHWM") - before) / sum(p.numel() * p.element_size() for p in model.parameters())

rehearsed(64, 1)  # what libraries take at a first run
print(rehearsed(1024, 48))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it")
@pytest.mark.parametrize(("mode", "most"), [("inference", 2.2), ("training", 4.3)])
def test_a_reference_takes_two_copies_of_the_weights_and_in_training_one_of_the_gradients(
    mode: Mode, most: float
) -> None:
    command = [sys.executable, "-c", REFERENCE_PEAK, mode]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert ended.returncode == 0, ended.stderr
    assert 1 < float(ended.stdout) < most  # copies of the float32 weights; one of 4 MB each scatters


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "many_diagnoses.py"
    specification = importlib.util.spec_from_file_location("many_diagnoses", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def assert_flat(series: ModuleType, rows: list[dict[str, Any]], warm_up: int, per_diagnosis: float) -> None:
    for name in ("descriptor_count", "thread_count", "compiled_code_count", "source_line_file_count"):
        assert rows[-1][name] <= rows[warm_up][name], name
    early, late = series.growth(rows, "object_count", warm_up)
    assert late - early <= per_diagnosis * (len(rows) - warm_up)


def recorded_series(folder: Path, count: int, *arguments: str) -> dict[str, Any]:
    """What the benchmark records in a process of its own, where nothing else takes or returns memory."""
    script, output = Path(__file__).parents[2] / "benchmarks" / "many_diagnoses.py", folder / "series.json"
    command = [sys.executable, str(script), "--count", str(count), "--output", str(output), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert ended.returncode == 0, ended.stderr
    record: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return record


@pytest.mark.slow
def test_eager_diagnoses_leave_nothing_behind(tmp_path: Path) -> None:
    rows = recorded_series(tmp_path, 13, "--eager")["rows"][7:]  # each kind once before: what it imports stays

    assert_flat(benchmark(), rows, 0, per_diagnosis=20)
    assert rows[-1]["resident_bytes"] - rows[0]["resident_bytes"] < 64 << 20


@pytest.mark.slow
def test_compiled_diagnoses_leave_nothing_behind(tmp_path: Path) -> None:
    record = recorded_series(tmp_path, 56)  # each kind four times: with both configurations, in both modes
    series, rows = benchmark(), record["rows"]

    # Half of the diagnoses compile one to four graphs: all of them together leave less than one that torch compiles.
    assert_flat(series, rows, 28, per_diagnosis=record["objects_of_plain_compile"] / 2)
    early, late = series.growth(rows, "resident_bytes", 28)
    assert late - early < 64 << 20
