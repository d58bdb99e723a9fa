"""``benchmarks/gpu.py``: what it counts, what it finds to disagree, and that it goes on where it stopped."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from builders import a_buffer, a_conversion, a_decision, a_diagnosis, a_failed_trial, a_graph, a_node, a_pair, a_trial
from builders import kernels as listed

from layoutdoctor.recording.reading import read_recorded
from layoutdoctor.recording.saved import save_recording

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
TRACES = ROOT / "tests" / "traces"
NO_TORCH = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv.pop(1), {}, '__main__')"
MACHINE = {"device": "cpu", "name": "a GPU", "target": None}


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    """The script as a module."""
    with mock.patch.object(sys, "path", [str(SCRIPT.parent), *sys.path]):
        return importlib.import_module("gpu")


def an_item(out: Path, name: str, recorded: str, traced: str | None = None) -> Path:
    """An item as ``record`` leaves it, of a trace of others; ``traced`` puts another trace beside the recording."""
    folder = out / name.replace("/", ".")
    for part in ("recordings", "traces"):
        (folder / part).mkdir(parents=True)
    save_recording(read_recorded(TRACES / f"{recorded}.json.gz"), folder / "recordings" / "recorded.recording")
    shutil.copy(TRACES / f"{traced or recorded}.json.gz", folder / "traces" / "recorded.json.gz")
    return folder


def run(*arguments: str) -> str:
    """What the script prints, where torch cannot be imported."""
    command = [sys.executable, "-c", NO_TORCH, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT).stdout


def test_conversions_of_recorded_traces_are_counted_by_hand(gpu: ModuleType) -> None:
    known = {
        "a100_alexnet": (79, {"nchwToNhwcKernel": 12}),
        "a100_conv_training_nccl": (2700, {"nchwToNhwcKernel": 474, "nhwcToNchwKernel": 159}),
        "h100_vit_patch_embed": (154, {"nchwToNhwcKernel": 2, "nhwcToNchwKernel": 1}),
        "h100_bert_control": (60, {}),
    }
    for trace, (count, expected) in known.items():
        conversions, seconds, names = gpu.count_kernels(TRACES / f"{trace}.json.gz")
        assert (names.total(), dict(conversions)) == (count, expected), trace
        assert (seconds > 0) == bool(expected), trace
    conversions, _, _ = gpu.count_kernels(TRACES / "mi300_resnet_act_checkpoint.json.gz")
    assert conversions.total() == 999
    assert conversions["batched_transpose_16x32_half"] == 452


def test_what_disagrees_stands_first_and_a_broken_recording_costs_itself(tmp_path: Path) -> None:
    an_item(tmp_path, "agreeing/inference/bf16", "a100_alexnet")
    an_item(tmp_path, "other/inference/bf16", "a100_alexnet", traced="h100_vit_patch_embed")
    broken = an_item(tmp_path, "broken/inference/bf16", "h100_bert_control")
    (broken / "recordings" / "recorded.recording").write_bytes(b"\x1f\x8bcut")
    items = [f"{name}/inference/bf16" for name in ("agreeing", "other", "broken")]
    steps = {f"{item} diagnosis": {"seconds": 1.0, "error": None} for item in items}
    (tmp_path / "manifest.json").write_text(json.dumps({"machine": MACHINE, "steps": steps}), encoding="utf-8")

    said = run("examine", str(tmp_path)).splitlines()
    assert said[0] == "agreeing/inference/bf16: agrees"
    assert "by hand {'nchwToNhwcKernel': 2, 'nhwcToNchwKernel': 1}" in said[1]
    assert said[2].startswith("broken/inference/bf16: RecordError: ")

    table = run("compare", str(tmp_path)).splitlines()
    assert table[0].startswith("device cpu, name a GPU")
    assert [row.split("/")[0] for row in table[4:7]] == ["| other", "| broken", "| agreeing"]
    assert [row.split(" | ")[4] for row in table[4:7]] == ["12 / 3", "-", "12 / 12"]


def test_lowerings_are_compared_fact_by_fact(gpu: ModuleType) -> None:
    graph = a_graph(a_decision(), nodes=(a_node("convolution", dtype="bfloat16"),), buffers=(a_buffer(),))
    other = a_graph(a_decision(applied=False), nodes=(a_node("convolution"),), buffers=graph.buffers)
    static, real = (a_diagnosis(a_trial(graphs=(one,))) for one in (graph, other))

    same = {"compared": {"decision": 1, "node": 1, "buffer": 1}, "differences": []}
    assert gpu.compare_lowerings(static, static) == same
    found, named = gpu.compare_lowerings(static, real), ("decision inference", "node convolution")
    assert found["compared"] == {"decision": 1, "decision differing": 1, "node": 1, "node differing": 1, "buffer": 1}
    assert [text.split(":")[0] for text in found["differences"]] == [f"inductor, {what}" for what in named]
    assert gpu.compare_lowerings(static, a_diagnosis(a_trial()))["compared"]["node differing"] == 1
    failed = gpu.compare_lowerings(static, a_diagnosis(a_failed_trial("inductor")))
    assert failed["differences"] == ["inductor cannot be compared: RuntimeError: boom"]


def test_round_trips_told_have_to_be_gone_by_hand(gpu: ModuleType) -> None:
    there, back = a_conversion("there", kernel="nchwToNhwcKernel"), a_conversion("back", kernel="nhwcToNchwKernel")
    trips = [a_pair("there", "back"), a_pair("there", "back"), a_pair("there", "elsewhere")]
    told = {"inductor": trips, "inductor-channels-last": trips[1:], "eager": []}
    own = listed(there, back)
    trials = [a_trial(name, kernels=own, redundant_pairs=tuple(pairs)) for name, pairs in told.items()]
    diagnosis = a_diagnosis(*trials)
    counts = {name: {"by_hand": {"nchwToNhwcKernel": n}} for name, n in zip(told, (9, 7), strict=False)}
    gone = {"told": 2, "cure": "inductor-channels-last", "gone": 2, "problem": None}
    assert gpu.round_trips(diagnosis, "inductor", counts) == gone
    counts["inductor"]["by_hand"]["nchwToNhwcKernel"] = 8
    problem = "1 round trips fewer are told of inductor-channels-last, which has 7 conversions by hand, not 8"
    assert gpu.round_trips(diagnosis, "inductor", counts) == {**gone, "gone": 1, "problem": problem}
    assert gpu.round_trips(diagnosis, "eager", counts)["told"] == 0


def test_promises_are_held_against_the_plain_times(gpu: ModuleType, tmp_path: Path) -> None:
    chosen = "inductor-channels-last"
    diagnosis = {"recommendation": {"configuration": chosen, "speedup": {"median": 2.0}}, "trials": []}
    (tmp_path / "diagnosis.json").write_text(json.dumps(diagnosis), encoding="utf-8")

    def row(*seconds: float) -> tuple[list[str], list[str]]:
        names = ("inductor", "inductor-channels-last", "eager")
        plain = {"seconds": {name: [one] * 10 for name, one in zip(names, seconds, strict=True)}}
        (tmp_path / "plain.json").write_text(json.dumps({**plain, "do_bench_seconds": {}, "errors": {}}))
        problems: list[str] = []
        return gpu._times(tmp_path, problems), problems

    assert row(2.0, 1.0, 3.0) == ([chosen, "2.00 / 2.00", chosen], [])
    assert row(2.0, 1.6, 3.0)[1] == [f"{chosen} was promised to be 2.00x as fast and is 1.25x"]
    assert row(2.0, 1.0, 0.5)[1] == [f"eager is 100.0% faster than {chosen}"]


def test_items_are_of_networks_that_exist(gpu: ModuleType) -> None:
    own = (SCRIPT.parent / "gpu_networks.py").read_text(encoding="utf-8")
    assert len(gpu.items()) == sum(2 * len(network.kinds) for network in (*gpu.FIRST, *gpu.OTHERS))
    for item, (network, _, _) in gpu.items().items():
        file, _, name = network.target.partition(":")
        assert len(network.shape) == len(network.small), item
        assert not file.endswith(".py") or (ROOT / file).is_file(), item
        assert not name or file in ("timm", "torchvision") or f"def {name}(" in own or f"class {name}(" in own, item
        assert not name.endswith("_autocast") or network.kinds == ("autocast",), item


def test_what_is_done_is_not_done_again_and_what_fails_costs_itself(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"a": "raise SystemExit(4)", "b": "raise SystemExit('it broke')", "c": "import time; time.sleep(60)"}

    def planned(out: Path, *_: object) -> Any:
        for item, code in codes.items():
            count = f"open({str(out / item / 'calls')!r}, 'a').write('.'); "
            yield f"{item} diagnosis", [sys.executable, "-ISc", count + code]

    def record(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "record", str(tmp_path), "--device", "cpu", *more])
        status: int = gpu.main()
        return status

    def manifest() -> Any:
        return json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))

    monkeypatch.setattr(gpu, "_itself", lambda *_: ["echo", json.dumps(MACHINE)])
    monkeypatch.setattr(gpu, "_planned", planned)
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0.1)
    assert record("--seconds", "4") == 75
    errors = {name: step["error"] for name, step in manifest()["steps"].items()}
    assert errors == {"a diagnosis": None, "b diagnosis": "exit status 1: it broke"}
    assert manifest()["begun"] == {}  # it had not the whole time
    assert record("--seconds", "1") == record("--seconds", "1") == 75
    assert manifest()["begun"] == {"c diagnosis": 2}
    assert record("--seconds", "1") == 0
    assert manifest()["steps"]["c diagnosis"]["error"].startswith("it took longer than ")
    codes["b"] = codes["c"] = "pass"
    assert record("--again") == 0
    assert [step["error"] for step in manifest()["steps"].values()] == [None, None, None]
    assert [len((tmp_path / item / "calls").read_text(encoding="utf-8")) for item in "ab"] == [1, 2]
    assert record("--small") == 2


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.timeout(1800)
def test_an_item_is_recorded_on_a_processor_through_resume(tmp_path: Path) -> None:
    item = "conv3d-stack/inference/bf16"
    command = [sys.executable, str(SCRIPT), "record", str(tmp_path), "--device", "cpu", "--small", "--only", item]
    first = subprocess.run([*command, "--seconds", "20"], capture_output=True, text=True, check=False, timeout=300)
    assert first.returncode == 75, first.stderr
    again = subprocess.run([*command, "--seconds", "900"], capture_output=True, text=True, check=False, timeout=1200)
    assert again.returncode == 0, again.stdout + again.stderr
    assert run("examine", str(tmp_path)) == f"{item}: agrees\n"
    assert f"| {item} | " in run("compare", str(tmp_path))
    assert (tmp_path / "conv3d-stack.inference.bf16" / "static" / "inductor.recording").exists()
