"""Diagnoses of very small models from end to end: launcher, workers, starts, recordings, rules."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch import nn

import layoutdoctor
from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.errors import SubjectError
from layoutdoctor.run import run as run_module
from layoutdoctor.run.run import Eager
from layoutdoctor.workers.launcher import close_kept_launcher
from layoutdoctor.workers.turns import compile_side_by_side, take_starts
from layoutdoctor.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.workers.messages import Progress

MODEL = """\
import threading
import time

import torch
from torch import nn

{before}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return torch.relu(self.convolution(x))

def get_inputs():
    return [torch.randn(2, 3, 16, 16)]

def get_init_inputs():
    return []
"""


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def image() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


@pytest.fixture(scope="module", autouse=True)
def _no_launcher_is_left() -> Iterator[None]:
    before = launchers()  # another test may keep one
    yield
    close_kept_launcher()
    assert launchers() <= before


def launchers() -> set[int]:
    found = set[int]()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "layoutdoctor" in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configurations whose workers were begun."""
    found: list[str] = []
    begin = Worker.begin

    def noted(worker: Worker) -> None:
        found.append(worker.name)
        begin(worker)

    monkeypatch.setattr(Worker, "begin", noted)
    return found


def measured(mode: Mode) -> tuple[Diagnosis, list[Progress]]:
    steps: list[Progress] = []
    diagnosis = layoutdoctor.diagnose(
        Small(), image(), mode=mode, configurations="eager,inductor", budget_seconds=1.0, progress=steps.append
    )
    assert [(trial.name, trial.status, trial.failure) for trial in diagnosis.trials] == [
        ("eager", "ok", None),
        ("inductor", "ok", None),
    ]
    return diagnosis, steps


@pytest.mark.compile
@pytest.mark.parametrize("mode", ["inference", pytest.param("training", marks=pytest.mark.smoke)])
def test_a_model_is_compiled_checked_timed_and_profiled(mode: Mode) -> None:
    model, threads = Small(), torch.get_num_threads()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    diagnosis, steps = measured(mode)

    assert diagnosis.comparison is not None
    assert diagnosis.comparison.baseline == "inductor"
    (ratio,) = diagnosis.comparison.ratios
    assert ratio.low <= ratio.median <= ratio.high
    for trial in diagnosis.trials:
        assert trial.equivalence is not None
        assert trial.equivalence.status == "equal"
        assert trial.equivalence.gradients_checked == (mode == "training")
        assert trial.kernels is not None
        assert trial.kernels.count > 0
        assert trial.measurement is not None
        assert len(trial.measurement.round_seconds) >= 3
        assert trial.graphs
    directions = [graph.direction for graph in diagnosis.trial("inductor").graphs]
    assert directions == (["inference"] if mode == "inference" else ["forward", "backward"])
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].stage == "looking for findings"
    assert set(diagnosis.stage_seconds) >= {"compiling", "profiling", "looking for findings"}
    assert torch.get_num_threads() == threads
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_without_convolution_is_not_compiled(begun: list[str]) -> None:
    diagnosis = layoutdoctor.diagnose(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4))

    assert begun == []
    assert {trial.status for trial in diagnosis.trials} == {"skipped"}
    assert diagnosis.subject.convolution_module_count == 0


@pytest.mark.compile
def test_a_model_that_starts_a_thread_while_loading_is_measured_in_processes_that_load_it_themselves(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint('loaded')"
    path, saved = tmp_path / "model.py", tmp_path / "d.json"
    path.write_text(MODEL.format(before=before), encoding="utf-8")

    words = [str(path), "--configurations", "eager,inductor", "--budget", "1", "--output", str(saved)]
    assert main(words) == 0

    diagnosis = load(saved)
    assert [(trial.name, trial.status, trial.failure) for trial in diagnosis.trials] == [
        ("eager", "ok", None),
        ("inductor", "ok", None),
    ]
    assert all(trial.measurement is not None for trial in diagnosis.trials)
    assert capfd.readouterr().err.count("loaded\n") == 1  # in eager mode; a worker has a log of its own


USED_ELSEWHERE = """
import os

def refuse(*args):
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

torch.cuda.is_available = lambda: os.environ.get("CUDA_VISIBLE_DEVICES") != ""
torch.cuda.get_rng_state = refuse
"""


@pytest.mark.compile
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--budget", "1"], id="measured"),
        pytest.param(["--lower-for", "cuda:90"], id="lowered"),
    ],
)
def test_a_model_on_the_cpu_is_compiled_in_forks_although_there_is_a_gpu(words: list[str], tmp_path: Path) -> None:
    path, saved = tmp_path / "model.py", tmp_path / "d.json"
    path.write_text(MODEL.format(before=USED_ELSEWHERE), encoding="utf-8")

    assert main([str(path), "--configurations", "inductor", *words, "--output", str(saved)]) == 0

    trial = load(saved).trial("inductor")
    assert (trial.status, trial.failure) == ("ok", None)


@pytest.mark.compile
def test_the_order_of_work_on_a_gpu_is_that_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.format(before="threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"))
    run_first, batches, at_once = Eager.run_first, list[list[str]](), list[int]()

    def with_room_for_two(eager: Eager) -> None:
        run_first(eager)
        eager.room = 2

    def compile_noted(batch: Any, *rest: Any, most: int | None = None, **options: Any) -> None:
        batches.append([worker.name for worker in batch])
        assert most is None
        compile_side_by_side(batch, *rest, most=most, **options)
        if len(batches) == 1:
            failure = Failure(kind="run", message="out of memory: 4.0 GiB were asked for", cause="out_of_memory")
            batch[1].observe(status="failed", failure=failure)
            batch[1].end()

    def starts_noted(*given: Any, **options: Any) -> None:
        at_once.append(options["at_once"])
        take_starts(*given, **options)

    monkeypatch.setattr(Eager, "on_gpu", True)
    monkeypatch.setattr(Eager, "run_first", with_room_for_two)
    monkeypatch.setattr(run_module, "compile_side_by_side", compile_noted)
    monkeypatch.setattr(run_module, "take_starts", starts_noted)
    names = "eager,inductor-layout-opt-off,inductor"
    assert main([str(path), "--configurations", names, "--budget", "2", "--output", str(tmp_path / "d.json")]) == 0

    diagnosis = load(tmp_path / "d.json")
    assert [batch for batch in batches if batch] == [["inductor", "eager"], ["eager"], ["inductor-layout-opt-off"]]
    for trial in diagnosis.trials:
        assert trial.status in ("ok", "same_as")
        assert trial.status == "same_as" or (trial.kernels is not None and trial.measurement is not None)
    assert at_once in ([], [0])


def test_what_does_not_run_is_an_error_with_the_line_and_no_worker_is_begun(begun: list[str]) -> None:
    with pytest.raises(SubjectError, match=r"cannot run Small on float32.*: RuntimeError: .* 3 channels") as caught:
        layoutdoctor.diagnose(Small(), torch.randn(2, 5, 16, 16))

    assert "\n" not in str(caught.value)
    assert begun == []
