"""``profile()``: what a program that runs anyway converts, without changing it."""

from __future__ import annotations

import gc
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
import torch._dynamo.callback
import torch._inductor.config as inductor
from builders import a_pair
from torch import nn

import layoutdoctor
from layoutdoctor.errors import UsageError
from layoutdoctor.run import in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[3] / "docs" / "profile.md"


class BackAndForth(nn.Module):
    """Converts its input and converts it back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.contiguous(memory_format=torch.channels_last))
        return x.contiguous() + 1


@pytest.fixture
def model() -> BackAndForth:
    torch.manual_seed(0)
    return BackAndForth().eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 4, 16, 16)


def run(model: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, count: int, **options: Any) -> Any:
    with layoutdoctor.profile(**options) as seen, torch.no_grad():
        for _ in range(count):
            model(images)
            seen.step()
    return seen


def directions(seen: Any) -> list[tuple[str, int]]:
    found = [one for graph in seen.diagnosis.trials[0].graphs for one in graph.conversions if one.owner == "user"]
    counts = {one.direction: sum(other.direction == one.direction for other in found) for one in found}
    return sorted(counts.items())


def notes(seen: Any) -> str:
    trial = seen.diagnosis.trials[0]
    lacks = (*trial.lacks, *(trial.kernels.lacks if trial.kernels is not None else ()))
    failure = trial.failure.message if trial.failure is not None else ""
    return " | ".join((*seen.diagnosis.subject.notes, *(lack.reason for lack in lacks), failure))


def test_each_recorded_step_has_its_conversions(model: BackAndForth, images: torch.Tensor) -> None:
    seen = run(model, images, 10)
    assert directions(seen) == [("to_channels_last", 5), ("to_contiguous", 5)]
    assert {c.step for graph in seen.diagnosis.trials[0].graphs for c in graph.conversions} == {
        f"ProfilerStep#{number}" for number in range(1, 6)
    }
    assert "5 of 10 steps were recorded, and took" in notes(seen)
    summary = seen.summary
    assert summary["recorded_step_count"] == 5
    assert 0 < summary["conversion_share"] < 1
    assert summary["conversion_seconds_per_step"] < summary["kernel_seconds_per_step"]
    assert "test_in_process.py" in str(seen)


def test_a_block_without_steps_is_one_step(model: BackAndForth, images: torch.Tensor) -> None:
    with layoutdoctor.profile() as seen, torch.no_grad():
        model(images)
    assert directions(seen) == [("to_channels_last", 1), ("to_contiguous", 1)]
    assert "step" not in notes(seen)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/tmp/train.py", "train.py:2"),
        ("/tmp/ipykernel_7/2255445277.py", "notebook cell, line 2"),
        ("<stdin>", "this process"),
    ],
)
def test_a_block_is_named_by_its_place(model: BackAndForth, images: torch.Tensor, file: str, name: str) -> None:
    names: dict[str, Any] = {"profile": layoutdoctor.profile, "model": model, "images": images}
    exec(compile("\nwith profile() as seen: model(images)", file, "exec"), names)
    assert names["seen"].diagnosis.subject.name == name


@pytest.mark.parametrize("count", [1, 2])
def test_of_too_few_steps_the_first_is_recorded(model: BackAndForth, images: torch.Tensor, count: int) -> None:
    seen = run(model, images, count)
    assert directions(seen) == [("to_channels_last", 1), ("to_contiguous", 1)]
    assert "too few steps, so the first step was recorded" in notes(seen)


@pytest.mark.parametrize(("steps", "count", "kept"), [(1, 8, 1), (2, 8, 2), (5, 3, 1), (5, 4, 2), (5, 7, 5)])
def test_the_first_two_steps_warm_up(
    model: BackAndForth, images: torch.Tensor, steps: int, count: int, kept: int
) -> None:
    assert run(model, images, count, steps=steps).summary["recorded_step_count"] == kept


@pytest.fixture
def nothing_changes(model: BackAndForth, images: torch.Tensor) -> Iterator[None]:
    """Switches, hooks, callbacks and handlers are afterwards as they were before."""
    handler = torch._dynamo.callback.callback_handler

    def state() -> tuple[object, ...]:
        config = (
            inductor.fx_graph_cache,
            inductor.fx_graph_remote_cache,
            torch._functorch.config.enable_autograd_cache,
        )
        hooks = (nn.Module.__call__, list(gc.callbacks), "run_start_callbacks" in vars(handler), gc.isenabled())
        backends = (torch.backends.mkldnn.enabled, torch.is_grad_enabled(), torch.get_num_threads())
        return config, hooks, backends, torch.autograd._profiler_enabled()

    before = state()
    yield
    assert state() == before


@pytest.mark.usefixtures("nothing_changes")
def test_outputs_gradients_and_random_numbers_are_as_without_it(images: torch.Tensor) -> None:
    def trained(seen: Any) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        model = nn.Sequential(BackAndForth(), nn.Dropout2d(0.3), BackAndForth())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            model(images + torch.rand(())).square().mean().backward()
            optimizer.step()
            seen.step()
        return tuple(parameter.detach().clone() for parameter in model.parameters())

    class Nothing:
        def step(self) -> None:
            pass

    plain, threads = trained(Nothing()), threading.enumerate()
    with layoutdoctor.profile() as seen:
        profiled = trained(seen)
    assert threading.enumerate() == threads
    assert all(map(torch.equal, plain, profiled))
    assert seen.summary["recorded_step_count"] == 4


@pytest.mark.usefixtures("nothing_changes")
def test_an_exception_goes_through_and_what_was_seen_stays(model: BackAndForth, images: torch.Tensor) -> None:
    seen = layoutdoctor.profile()

    def fails_in_the_sixth_step() -> None:
        with seen, torch.no_grad():
            for number in range(10):
                model(images)
                seen.step()
                1 / (5 - number)

    with pytest.raises(ZeroDivisionError):
        fails_in_the_sixth_step()
    assert seen.summary["recorded_step_count"] == 4
    assert "ZeroDivisionError ended the block" in notes(seen)


@pytest.mark.usefixtures("nothing_changes")
def test_a_block_within_a_block_says_so(model: BackAndForth, images: torch.Tensor) -> None:
    with layoutdoctor.profile() as outer, torch.no_grad():
        with layoutdoctor.profile() as inner:
            model(images)
            inner.step()
        model(images)
    assert "another block of layoutdoctor.profile() is open" in str(inner)
    assert inner.summary == {"recorded_step_count": 0.0, "finding_count": 0.0}
    assert directions(outer) == [("to_channels_last", 2), ("to_contiguous", 2)]
    assert directions(run(model, images, 3)) == [("to_channels_last", 1), ("to_contiguous", 1)]


@pytest.mark.usefixtures("nothing_changes")
def test_another_profiler_goes_on_undisturbed(model: BackAndForth, images: torch.Tensor) -> None:
    with torch.profiler.profile() as other:
        seen = run(model, images, 4)
    assert "another profiler records this thread" in " ".join(str(seen).split())
    assert sum(event.count for event in other.key_averages() if event.key == "aten::conv2d") == 4


def test_a_thread_that_runs_the_model_is_not_recorded(model: BackAndForth, images: torch.Tensor) -> None:
    with layoutdoctor.profile() as seen:
        thread = threading.Thread(target=lambda: (model(images), seen.step()))
        thread.start()
        thread.join()
    said = notes(seen)
    assert "step() was called in another thread or process" in said
    assert "no operation of torch ran in the thread of the block" in said


def test_what_fails_here_is_no_failure_of_the_program(
    model: BackAndForth, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of ours that may fail, in turn: the program's own outputs come, and the report says what is missing."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("not today")

    parts = ("private_directory", "lowering_every_graph", "StepRecorder", "profiler_runs", "observed_environment")
    for part in parts:
        with monkeypatch.context() as patch:
            patch.setattr(in_process, part, fails)
            with layoutdoctor.profile() as seen, torch.no_grad():
                outputs = [model(images) for _ in range(3)]
                seen.step()
        assert len(outputs) == 3
        assert "not today" in " ".join(str(seen).split()), part
    assert directions(run(model, images, 3)) == [("to_channels_last", 1), ("to_contiguous", 1)]


def test_a_process_that_is_forked_within_the_block_has_no_part_in_it(model: BackAndForth, images: torch.Tensor) -> None:
    seen = layoutdoctor.profile()
    with seen, torch.no_grad():
        child = os.fork()
        if child == 0:
            gc.collect()
            seen.step()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(3):
            model(images)
            seen.step()
    assert seen.summary["recorded_step_count"] == 1


def test_a_long_recording_is_ended(model: BackAndForth, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "_MOST_SECONDS", 0.0)
    monkeypatch.setattr(in_process, "_MOST_SECONDS_OF_STEPS", 0.0)
    seen = run(model, images, 9)
    assert seen.summary["recorded_step_count"] == 1
    with layoutdoctor.profile() as whole, torch.no_grad():
        model(images)
        gc.collect()
        model(images)
    assert directions(whole) == [("to_channels_last", 1), ("to_contiguous", 1)]
    for one in (seen, whole):
        assert "recording ended after 0 s" in notes(one)


def test_a_diagnosis_that_is_asked_for_too_early_is_an_error(model: BackAndForth) -> None:
    with layoutdoctor.profile() as seen:
        with pytest.raises(UsageError, match="has not ended"):
            seen.diagnosis  # noqa: B018
        assert "open" in str(seen)
    with pytest.raises(UsageError, match="twice"):
        seen.__enter__()
    with pytest.raises(UsageError, match="was not entered"):
        layoutdoctor.profile().diagnosis  # noqa: B018


def test_a_block_whose_recording_could_not_be_made_is_over(
    model: BackAndForth, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, traces: Any) -> Any:
        raise OSError("no space")

    monkeypatch.setattr(in_process.Profile, "_recording_of", fail)
    seen = run(model, images, 4)
    assert ": over, 4 steps>" in repr(seen)
    assert str(seen) == "OSError: no space"
    with pytest.raises(UsageError, match="twice"):
        seen.__enter__()


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "5"])
def test_what_is_no_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(UsageError, match="expected a number from 1 on"):
        layoutdoctor.profile(steps=steps)


def test_each_rank_writes_a_file_of_its_own(
    model: BackAndForth, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    seen = run(model, images, 3)
    seen.save(tmp_path / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["report.rank3.json"]
    saved = layoutdoctor.load(tmp_path / "report.rank3.json")
    assert "rank 3 of 4" in saved.subject.notes


def test_the_page_names_every_number(model: BackAndForth, images: torch.Tensor) -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Numbers for a logger")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table)) - {"seen"}
    given = set(run(model, images, 10).summary)
    assert given <= named
    assert named - given <= {"conversion_mib_per_step", "round_trip_seconds_per_step"}


def test_round_trips_are_numbers_of_one_step_too(model: BackAndForth, images: torch.Tensor) -> None:
    seen = run(model, images, 10)
    pairs = tuple(a_pair(seconds=1e-3) for _ in range(10))
    trial = msgspec.structs.replace(seen.diagnosis.trials[0], redundant_pairs=pairs)
    seen.__dict__["diagnosis"] = msgspec.structs.replace(seen.diagnosis, trials=(trial,))

    summary = seen.summary
    assert (summary["round_trip_count"], summary["round_trip_seconds_per_step"]) == (2, pytest.approx(2e-3))


# ---------------------------------------------------------------------------------------------- compiled code
@pytest.fixture
def compiled(model: BackAndForth) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    torch._dynamo.reset()
    yield torch.compile(model)
    torch._dynamo.reset()


@pytest.mark.compile
@pytest.mark.smoke
@pytest.mark.usefixtures("nothing_changes")
def test_what_is_compiled_in_the_block_has_graphs_lines_and_kernels(
    compiled: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor
) -> None:
    seen = run(compiled, images, 9)
    trial = seen.diagnosis.trials[0]
    assert [graph.decision.applied for graph in trial.graphs if graph.decision is not None] == [True]
    lines = {c.location.line for graph in trial.graphs for c in graph.conversions if c.location is not None}
    assert lines
    assert {kernel.library for kernel in trial.kernels.kernels} >= {"inductor", "aten"}
    assert seen.summary["recorded_step_count"] == 5

    again = run(compiled, images, 9)
    assert not again.diagnosis.trials[0].graphs
    assert "compiled before the block" in notes(again)


@pytest.mark.compile
def test_a_step_that_compiles_is_left_out(compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with layoutdoctor.profile() as seen, torch.no_grad():
        for size in (16, 16, 16, 24, 24, 24, 24, 24, 24, 24):
            compiled(torch.randn(2, 4, size, size))
            seen.step()
    assert "left out: 1 step in which something was compiled" in notes(seen)
    assert seen.summary["recorded_step_count"] == 5
    assert len(seen.diagnosis.trials[0].graphs) == 2


@pytest.mark.compile
def test_a_block_without_steps_that_compiles_has_graphs_and_no_kernels(
    compiled: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor
) -> None:
    with layoutdoctor.profile() as seen, torch.no_grad():
        compiled(images)
    trial = seen.diagnosis.trials[0]
    assert trial.kernels is None
    assert any(graph.conversions for graph in trial.graphs)
    assert "mark its steps" in notes(seen)
    assert "compiles in one process" in str(seen)


def test_a_saved_one_is_shown_as_a_recorded_run(model: BackAndForth, images: torch.Tensor, tmp_path: Path) -> None:
    seen = run(model, images, 8)
    seen.save(tmp_path / "seen.json")
    saved = layoutdoctor.load(tmp_path / "seen.json")
    assert saved.subject.mode == "trace"
    assert len(saved.trials[0].graphs[0].conversions) == len(seen.diagnosis.trials[0].graphs[0].conversions)
    assert msgspec.structs.asdict(saved.trials[0].configuration)["name"] == "recorded"
