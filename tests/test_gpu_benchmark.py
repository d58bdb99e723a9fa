"""``benchmarks/gpu.py``: what is run next, what comes back, and what counts as right. No GPU, no compiler, no torch."""

from __future__ import annotations

import gzip
import importlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
TRACES = ROOT / "tests" / "traces"
NO_TORCH = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv.pop(1), {}, '__main__')"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    """The program as a module."""
    with mock.patch.object(sys, "path", [str(SCRIPT.parent), *sys.path]):
        return importlib.import_module("gpu")


def a_row(seconds: float, ratio: float, *, applied: bool | None = None, **more: Any) -> dict[str, Any]:
    """What was seen by hand of a configuration."""
    decisions = [] if applied is None else [{"applied": applied, "convolutions": 1}]
    row = {
        "loop_seconds": seconds,
        "flushed_seconds": 2 * seconds,
        "kernel_seconds": seconds,
        "launch_seconds": seconds,
    }
    return row | {"ratio": ratio, "kernels": 3, "conversions": {}, "decisions": decisions} | more


def a_trial(name: str, seconds: float | None = None, **more: Any) -> dict[str, Any]:
    """A configuration in the product's JSON."""
    trial = {"configuration": {"name": name}, "status": "ok", "same_as": None, "failure": None, "graphs": []}
    trial |= {"kernels": {"conversion_count": 0, "conversions": []}, "equivalence": {"status": "equal"}}
    return trial | {"measurement": {"median_seconds": seconds} if seconds else None} | more


def a_graph(*conversions: str, applied: bool = True) -> dict[str, Any]:
    """A graph in the product's JSON; its conversions are Inductor's, of the directions given."""
    own = [{"owner": "compiler", "tensor": "weight", "direction": direction} for direction in conversions]
    decision = {"applied": applied, "channels_last_convolution_count": int(applied)}
    return {"direction": "forward", "decision": decision, "conversions": own}


def a_diagnosis(*trials: dict[str, Any], chosen: str | None, promise: float | None = None, **verdicts: str) -> Any:
    """The product's JSON; verdicts are by configuration, with _ for -."""
    ratios = [
        {"name": n.replace("_", "-"), "low": 1.9, "median": 2.0, "high": 2.1, "verdict": v} for n, v in verdicts.items()
    ]
    speedup = promise and {"low": promise, "median": promise, "high": promise}
    return {
        "trials": list(trials),
        "findings": [],
        "comparison": {"baseline": "inductor", "ratios": ratios, "fastest": []},
        "recommendation": {"configuration": chosen, "speedup": speedup, "verified": True},
    }


def words(judgements: Any) -> list[tuple[str, str]]:
    """The first words and the outcome of each judgement."""
    outcomes = {True: "right", False: "wrong", None: "open"}
    return [(" ".join(text.split()[:3]).rstrip(":;"), outcomes[is_right]) for is_right, text in judgements]


def test_plans_name_cases_that_exist_and_no_item_twice(gpu: ModuleType) -> None:
    cases = (SCRIPT.parent / "gpu_cases.py").read_text(encoding="utf-8")
    for name in gpu.PLANS:
        plan = gpu.plan_of(name)
        assert plan[0].key == "probe.facts"
        assert len({item.key for item in plan}) == len(plan), name
        for item in plan[1:]:
            assert item.what == "probe" or f"\ndef {item.name}() -> Case:" in cases, item
            assert item.mode in (*gpu.MODES, "-"), item
            assert re.fullmatch("-|quick|default|all|.*inductor.*|eager,eager-channels-last", item.configurations), item
    keys = [item.key for item in gpu.plan_of("third") if item.name == "chain"]
    assert keys == [f"{what}.chain.{mode}" for mode in gpu.MODES for what in ("truth", "product", "static")]


def test_what_is_done_is_left_out_and_what_takes_too_long_is_passed_over(gpu: ModuleType) -> None:
    long, short, failed = (
        gpu.Item(name, "truth", "training", "eager", seconds)
        for name, seconds in (("long", 80.0), ("short", 10.0), ("failed", 5.0))
    )
    done = {"truth.failed.training": {"error": "exit status 1: boom"}}
    assert gpu.due([long, short, failed], done) == [long, short]
    assert gpu.due([long, short, failed], done, again=True) == [long, short, failed]
    assert gpu.due([long, short, failed], done, only="short,failed") == [short]
    for seconds, item in ((80.0, long), (79.0, short), (9.0, None)):
        assert gpu.next_that_fits([long, short], seconds) == item
    assert gpu.next_that_fits([long, short], 16.0, small=True) == long


def test_a_run_goes_on_where_the_last_one_stopped(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"a": "print('fine')", "b": "raise SystemExit('it broke')", "c": "import time; time.sleep(60)"}
    log = tmp_path / "log"
    plan = [gpu.Item(name, "truth", "training", "eager", seconds) for name, seconds in (("a", 0), ("b", 0), ("c", 2))]

    def command_of(item: Any, *_: Any) -> list[str]:
        return [sys.executable, "-ISc", f"open({str(log)!r}, 'a').write({item.name!r}); {codes[item.name]}"]

    def errors(*options: str) -> dict[str, Any]:
        out = tmp_path / "out"
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "run", str(out), "--device", "cpu", *options])
        assert gpu.main() == 0
        return {key: one["error"] for key, one in json.loads((out / "manifest.json").read_text())["items"].items()}

    monkeypatch.setattr(gpu, "plan_of", lambda _: plan)
    monkeypatch.setattr(gpu, "command_of", command_of)
    monkeypatch.setattr(gpu, "gpu_state", lambda: None)
    monkeypatch.setattr(gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    first = {"truth.a.training": None, "truth.b.training": "exit status 1: it broke"}
    assert errors("--seconds", "1.5") == first  # no time was left for c
    assert errors("--seconds", "3")["truth.c.training"].startswith("took longer than ")
    assert log.read_text() == "abc"
    codes["b"] = codes["c"] = "pass"
    assert set(errors("--again").values()) == {None}
    assert log.read_text() == "abcbc"
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert len(names) == 8
    assert {"compared.txt", "manifest.json", "recordings.training.tar", "truth.json"} <= names
    logs = dict(gpu.unpacked(tmp_path / "out" / "logs.tar"))
    assert logs["truth.a.training.log"].splitlines()[-1] == b"fine"


def test_conversions_of_recorded_traces_are_counted_by_hand(gpu: ModuleType) -> None:
    known = {
        "a100_alexnet": (79, {"nchwToNhwcKernel": 12}),
        "a100_conv_training_nccl": (2700, {"nchwToNhwcKernel": 474, "nhwcToNchwKernel": 159}),
        "h100_vit_patch_embed": (154, {"nchwToNhwcKernel": 2, "nhwcToNchwKernel": 1}),
        "h100_bert_control": (60, {}),
    }
    for trace, (count, expected) in known.items():
        events = json.loads(gzip.decompress((TRACES / f"{trace}.json.gz").read_bytes()))["traceEvents"]
        counted = gpu.kernel_counts(events)
        assert (counted["kernels"], counted["conversions"]) == (count, expected), trace
        assert (counted["conversion_seconds"] > 0) == bool(expected), trace
        assert counted["kernel_seconds"] > counted["conversion_seconds"], trace


def test_what_is_said_is_right_wrong_or_open(gpu: ModuleType) -> None:
    by_hand = {
        "eager": a_row(2.0, 0.5),
        "inductor": a_row(1.0, 1.0, applied=True, conversions={"nchwToNhwcKernel": 2}),
        "inductor-channels-last": a_row(0.5, 2.0, applied=True, error_over_largest=0.001),
        "inductor-layout-opt-off": {"error": "RuntimeError: boom"},
    }
    kernel = {"kernel": "void cudnn::ops::nchwToNhwcKernel<float>(...)"}
    wrong = a_diagnosis(
        a_trial("eager", 2.5),
        a_trial("inductor", 1.0, kernels={"conversions": [kernel]}),
        a_trial("inductor-channels-last", 0.5, graphs=[a_graph(applied=False)], equivalence={"status": "different"}),
        chosen="eager",
        promise=0.6,
        inductor_channels_last="equal",
        eager="faster",
    )
    assert words(gpu.judged(by_hand, wrong)) == [
        ("the time of", "wrong"),
        ("conversions of eager", "right"),
        ("the time of", "right"),
        ("conversions of inductor", "wrong"),
        ("decisions of inductor", "wrong"),  # none was recorded
        ("the time of", "right"),
        ("conversions of inductor-channels-last", "right"),
        ("decisions of inductor-channels-last", "wrong"),
        ("outputs of inductor-channels-last", "wrong"),
        ("inductor-channels-last is called", "wrong"),
        ("eager is called", "wrong"),
        ("the choice is", "wrong"),
        ("the promise is", "wrong"),
    ]
    untimed = a_diagnosis(
        a_trial("inductor", 1.0), a_trial("inductor+max-autotune", 0.5), chosen="inductor+max-autotune"
    )
    assert words(gpu.judged(by_hand, untimed))[-1] == ("the choice is", "open")


def test_equal_configurations_are_judged_by_the_one_that_ran(gpu: ModuleType) -> None:
    by_hand = {"inductor": a_row(1.0, 1.0, applied=False), "inductor-layout-opt-off": a_row(1.0, 1.0, applied=False)}
    ran = a_trial("inductor", 1.0, graphs=[a_graph(applied=False)])
    same = a_trial("inductor-layout-opt-off", status="same_as", same_as="inductor", kernels=None, equivalence=None)
    outcome = words(gpu.judged(by_hand, a_diagnosis(ran, same, chosen=None, inductor_layout_opt_off="inconclusive")))
    assert [text for text, word in outcome if word != "right"] == ["inductor-layout-opt-off is called"]
    assert ("inductor-layout-opt-off is called", "open") in outcome


def test_a_crash_has_to_stay_in_channels_last(gpu: ModuleType) -> None:
    statuses = {"eager": "ok", "eager-channels-last": "crashed", "inductor": "failed"}
    crashed = {"trials": [a_trial(name, status=status) for name, status in statuses.items()]}
    for case, expected in (("illegal_access.inference", [True, True, False]), ("chain.inference", [False, False])):
        assert [right for right, _ in gpu.judged_failures(case, crashed)] == expected


def test_lowerings_are_compared_graph_by_graph(gpu: ModuleType) -> None:
    def said(*graphs: dict[str, Any]) -> dict[str, Any]:
        return {"trials": [a_trial("eager"), a_trial("inductor", graphs=list(graphs))]}

    compiled = said(a_graph("to_channels_last"))
    assert words(gpu.judged_lowerings(compiled, compiled)) == [("graphs of inductor", "right")]
    for static in (said(a_graph()), said(a_graph("to_channels_last", applied=False)), said()):
        assert words(gpu.judged_lowerings(static, compiled)) == [("graphs of inductor", "wrong")]


def test_results_are_compared_and_kept_without_torch(gpu: ModuleType, tmp_path: Path) -> None:
    new, old, other, kept = (tmp_path / name for name in ("new", "old", "other", "kept"))
    card = {"facts": {"name": "A GPU"}}
    rows = {"inductor": a_row(1.0, 1.0), "eager": {"error": "RuntimeError: boom"}}
    saved = json.dumps(a_diagnosis(a_trial("inductor", 1.0), chosen=None)).encode()
    for out, truths, products in (
        (new, {**card, "chain.inference": rows}, {}),
        (old, card, {"product.chain.inference.json": saved}),
        (other, {}, {"product.chain.inference.json": saved}),  # of another card
    ):
        out.mkdir()
        (out / "truth.json").write_text(json.dumps(truths))
        gpu.pack(out / "products.tar", products)
    files = {"chain/inductor.recording": b"recorded", "chain/eager.recording": random.Random(0).randbytes(1_000_000)}
    gpu.pack(new / "recordings.inference.tar", {name: gzip.compress(data) for name, data in files.items()})
    gpu.pack(new / "recordings.training.tar", {})

    def run(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", NO_TORCH, str(SCRIPT), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
        ).stdout.splitlines()

    assert run("compare", str(new), str(old), str(other)) == [
        'facts: {"name": "A GPU"}',
        'facts: {"name": "A GPU"}',
        "facts: {}",
        "",
        "chain.inference on A GPU",
        "  by hand inductor: 1.00x, ms {'loop': 1000.0, 'flushed': 2000.0, 'kernel': 1000.0, 'launch': 1000.0}, "
        "3 kernels, conversions {}, decisions [], errors [None, None]",
        "  by hand eager: RuntimeError: boom",
        "  product recommends None, None",
        "  RIGHT the time of inductor is 1000.0000 ms, +0.0% from the time by hand",
        "  RIGHT conversions of inductor: {}; by hand {}",
        "  RIGHT the choice is inductor, which takes 1.000x the time of inductor, the fastest by hand",
        "",
        "chain.inference on an unknown device",
        "  product recommends None, None",
        "",
        "3 RIGHT, 0 WRONG, 0 OPEN",
    ]
    said = run("fixtures", str(new), str(kept))
    assert [line.split(":")[0] for line in said] == [
        "chain.inference inductor.recording",
        "chain.inference eager.recording",
    ]
    folder = kept / "chain.inference.a-gpu"
    assert {file.name for file in folder.iterdir()} == {"inductor.recording", "truth.json"}
    assert said[1].endswith(" bytes, left out")
    assert gzip.decompress((folder / "inductor.recording").read_bytes()) == b"recorded"
    assert json.loads((folder / "truth.json").read_text()) == rows
