"""What ``diagnoses`` concludes from records and counts; its parts that run models are tried by ``run_all.sh``."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import builders
import diagnoses
import msgspec
import pytest
from archive import Archive
from claims import confirmed_pairs, conversions, cure_for, removal
from diagnoses import expected_seconds, headline, timing
from kernel_count import Count
from plain_runs import OPTIONS
from tables import render

from layoutdoctor.configurations import DEFAULT_CONFIGURATIONS
from layoutdoctor.records import Conversion, Equivalence, Finding, Trial

if TYPE_CHECKING:
    from collections.abc import Callable

TRACES = Path(__file__).parents[1] / "traces"
TO_LAST = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float>(int)"
TO_FIRST = "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, float>(int)"


def a_library_conversion(number: int, kernel: str = TO_LAST) -> Conversion:
    return builders.a_conversion(f"conversion {number}", owner="library", kernel=kernel, direction="to_channels_last")


def a_trial_with_pairs(count: int, name: str = "inductor") -> Trial:
    """A trial in which every second conversion undoes the one before."""
    listed = [a_library_conversion(number, (TO_LAST, TO_FIRST)[number % 2]) for number in range(2 * count)]
    pairs = tuple(builders.a_pair(f"conversion {2 * n}", f"conversion {2 * n + 1}") for n in range(count))
    configuration = next(one for one in DEFAULT_CONFIGURATIONS if one.name == name)
    return Trial(configuration=configuration, status="ok", kernels=builders.kernels(*listed), redundant_pairs=pairs)


def counted(to_last: int, to_first: int, moving: int = 0) -> Count:
    return Count(
        library=+Counter({TO_LAST: to_last, TO_FIRST: to_first}), moving=Counter({"triton_poi_fused_0": moving})
    )


@pytest.mark.parametrize(("live", "same"), [(2, True), (1, False)])
def test_conversions_are_found_three_ways(live: int, same: bool) -> None:
    """The trace of a patch embedding holds two conversions to channels-last and one back."""
    listed = [*(a_library_conversion(number) for number in range(live)), a_library_conversion(9, TO_FIRST)]
    trial = builders.a_trial(kernels=builders.kernels(*listed))

    found = conversions(trial, TRACES / "h100_vit_patch_embed.json.gz")

    assert found["examined"] == found["counted"] == {"nchwToNhwcKernel": 2, "nhwcToNchwKernel": 1}
    assert (found["live"] == found["counted"]) is same
    assert found["kernel_count"] == 154


def test_a_conversion_that_changes_no_layout_is_not_counted() -> None:
    trial = builders.a_trial(
        kernels=builders.kernels(builders.a_conversion("cast", owner="library", kernel=TO_LAST, direction="none"))
    )

    assert conversions(trial, TRACES / "h100_vit_patch_embed.json.gz")["live"] == {}


def test_conversions_of_the_compiler_have_to_run(tmp_path: Path) -> None:
    """Two conversions in one kernel that ran, and one whose kernel did not; another kernel only moves elements."""
    code = tmp_path / "moving.py"
    code.write_text(
        "@triton.jit\ndef triton_(in_ptr0, out_ptr0):\n"
        "    tmp0 = tl.load(in_ptr0 + (x0 + 8*y1), None)\n    tl.store(out_ptr0 + (y1 + 4*x0), tmp0, None)\n",
        encoding="utf-8",
    )
    names = ["triton_poi_fused_0", "triton_poi_fused_7"]
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": 1, "args": {"stream": 7}} for name in names]
    launch = {"ph": "X", "cat": "cpu_op", "name": names[1], "ts": 0, "dur": 1, "args": {"kernel_file": str(code)}}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [*events, launch]}), encoding="utf-8")
    kernels = ["triton_poi_fused_0", "triton_poi_fused_0", "triton_poi_fused_1"]
    listed = [
        builders.a_conversion(f"graph 0 conversion {n}", owner="compiler", kernel=kernel)
        for n, kernel in enumerate(kernels)
    ]

    found = conversions(builders.a_trial(graphs=(builders.a_graph(conversions=tuple(listed)),)), trace)

    assert (found["compiler"], found["compiler_present"]) == (3, 2)
    assert found["absent"] == ["triton_poi_fused_1"]
    assert found["candidates"] == ["triton_poi_fused_7"]


@pytest.mark.parametrize(
    ("after", "confirmed"),
    [
        (counted(0, 0), 2),
        (counted(1, 1), 1),
        (counted(2, 0), 0),  # one direction alone proves no pair
        (counted(2, 2), 0),
        (counted(0, 0, moving=4), 2),  # what came instead is another matter
    ],
)
def test_a_pair_is_confirmed_where_both_its_conversions_are_gone(after: Count, confirmed: int) -> None:
    assert confirmed_pairs(a_trial_with_pairs(2), counted(2, 2), after) == confirmed


def test_pairs_of_generated_kernels_are_counted_by_what_the_code_does() -> None:
    listed = tuple(
        builders.a_conversion(f"c{n}", owner="compiler", kernel=f"triton_poi_fused_convolution_{n}") for n in range(2)
    )
    trial = builders.a_trial(
        graphs=(builders.a_graph(conversions=listed),), redundant_pairs=(builders.a_pair("c0", "c1"),)
    )

    assert confirmed_pairs(trial, counted(0, 0, moving=3), counted(0, 0, moving=1)) == 1
    assert confirmed_pairs(trial, counted(0, 0, moving=3), counted(0, 0, moving=2)) == 0


def test_the_cure_is_the_recommended_configuration_where_it_has_fewer_pairs() -> None:
    trials = [
        a_trial_with_pairs(3, "inductor"),
        a_trial_with_pairs(0, "inductor-layout-opt-off"),
        a_trial_with_pairs(1, "inductor-channels-last"),
        a_trial_with_pairs(0, "eager"),
    ]

    def chosen(recommended: str | None) -> str | None:
        diagnosis = builders.a_diagnosis(*trials, recommendation=builders.a_recommendation(recommended))
        return cure_for(diagnosis, "inductor")

    assert chosen("inductor-channels-last") == "inductor-channels-last"
    assert chosen("inductor") == "inductor-layout-opt-off"
    assert chosen("eager") == "inductor-layout-opt-off"
    assert cure_for(builders.a_diagnosis(*trials), "eager") is None


def test_without_pairs_there_is_nothing_to_remove(tmp_path: Path) -> None:
    diagnosis = builders.a_diagnosis(a_trial_with_pairs(0, "eager"))

    result = removal(diagnosis, "eager", {}, {}, "cpu", tmp_path)

    assert (result["claimed"], result["confirmed"], result["cure"]) == (0, None, None)


def a_recorder(kernels: dict[str, list[str]]) -> Callable[..., None]:
    """Stands for the profiler: a trace of these kernels for each configuration."""

    def record(step: object, device: str, file: Path, *, with_stack: bool) -> None:
        del step, device
        assert with_stack
        name = file.name.removeprefix("plain-").removesuffix(".json.gz")
        events = [
            {"ph": "X", "cat": "kernel", "name": kernel, "ts": number, "dur": 100, "args": {}}
            for number, kernel in enumerate(kernels[name])
        ]
        file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))

    return record


def test_removal_compares_the_traces_and_times_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = a_trial_with_pairs(2, "inductor")
    pairs = msgspec.structs.replace(
        pairs, redundant_pairs=tuple(msgspec.structs.replace(pair, seconds=2e-4) for pair in pairs.redundant_pairs)
    )
    diagnosis = builders.a_diagnosis(
        pairs,
        a_trial_with_pairs(0, "inductor-channels-last"),
        recommendation=builders.a_recommendation("inductor-channels-last"),
    )
    names = ("inductor", "inductor-channels-last")
    kernels = {"inductor": [TO_LAST, "gemm", TO_FIRST] * 2, "inductor-channels-last": ["gemm", "gemm", TO_LAST]}
    monkeypatch.setattr("claims.record", a_recorder(kernels))
    rounds = {"inductor": [1.0e-3] * 3, "inductor-channels-last": [0.7e-3] * 3}

    result = removal(diagnosis, "inductor", dict.fromkeys(names, nothing), rounds, "cuda", tmp_path)

    assert (result["claimed"], result["cure"]) == (2, "inductor-channels-last")
    assert result["confirmed"] == 1  # one of the two conversions to channels-last is still there
    assert result["before"] == {"nchwToNhwcKernel": 2, "nhwcToNchwKernel": 2}
    assert result["after"] == {"nchwToNhwcKernel": 1}
    assert result["promised_seconds"] == pytest.approx(4e-4)
    assert result["saved_seconds"] == pytest.approx(3e-4)
    assert result["kernel_seconds_saved"] == pytest.approx(3e-4)


def test_pairs_of_generated_kernels_whose_code_is_gone_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tuple(builders.a_conversion(f"c{n}", owner="compiler", kernel=f"triton_poi_{n}") for n in range(2))
    trial = msgspec.structs.replace(
        a_trial_with_pairs(0, "inductor"),
        graphs=(builders.a_graph(conversions=listed),),
        redundant_pairs=(builders.a_pair("c0", "c1"),),
    )
    diagnosis = builders.a_diagnosis(trial, a_trial_with_pairs(0, "inductor-layout-opt-off"))
    rounds = {"inductor": [1.0], "inductor-layout-opt-off": [0.9]}
    kernels = {"inductor": ["triton_poi_0", "triton_poi_1"], "inductor-layout-opt-off": ["gemm"]}
    monkeypatch.setattr("claims.record", a_recorder(kernels))

    result = removal(diagnosis, "inductor", dict.fromkeys(rounds, nothing), rounds, "cuda", tmp_path)

    assert result["confirmed"] is None
    assert "code of generated kernels" in result["why_not"]


def nothing() -> None:
    """A step that costs nothing."""


def test_regret_is_what_the_recommended_one_loses_against_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {"eager": [3.0] * 5, "inductor": [2.0] * 5, "inductor-layout-opt-off": [1.6] * 5}
    monkeypatch.setattr("diagnoses.time_in_turns", lambda *_: rounds)
    trials = [a_trial_with_pairs(0, name) for name in rounds]
    speedup = builders.a_speedup(1.3)

    def timed(recommended: str) -> dict[str, object]:
        recommendation = builders.a_recommendation(recommended, speedup=speedup if recommended != "inductor" else None)
        diagnosis = builders.a_diagnosis(*trials, recommendation=recommendation)
        return timing(diagnosis, dict.fromkeys(rounds, nothing), {}, "cpu", 0.0)

    good, poor = timed("inductor-layout-opt-off"), timed("inductor")

    assert (good["fastest"], good["regret"]) == ("inductor-layout-opt-off", 0.0)
    assert good["speedup_measured"] == pytest.approx(1.25)
    assert good["speedup_promised"] == pytest.approx(1.3)
    assert poor["regret"] == pytest.approx(0.25)
    assert poor["speedup_promised"] == poor["speedup_measured"] == 1.0


def test_without_a_recommendation_nothing_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {"eager": [1.5] * 3, "inductor": [2.0] * 3}
    monkeypatch.setattr("diagnoses.time_in_turns", lambda *_: rounds)
    diagnosis = builders.a_diagnosis(
        *(a_trial_with_pairs(0, name) for name in rounds),
        comparison=builders.a_comparison(fastest=("inductor", "eager")),
        recommendation=builders.a_recommendation(None),
    )

    result = timing(diagnosis, dict.fromkeys(rounds, nothing), {}, "cpu", 0.0)

    assert (result["recommended"], result["fastest_told"], result["fastest"]) == (None, "inductor", "eager")
    assert result["regret"] == pytest.approx(1 / 3)
    assert "speedup_promised" not in result


def test_a_configuration_with_wrong_outputs_is_not_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {"eager": [1.0] * 3, "inductor": [2.0] * 3}
    monkeypatch.setattr("diagnoses.time_in_turns", lambda *_: rounds)
    wrong = builders.a_trial("eager", equivalence=Equivalence(status="different"))
    diagnosis = builders.a_diagnosis(
        wrong, builders.a_trial("inductor"), recommendation=builders.a_recommendation("inductor")
    )

    result = timing(diagnosis, dict.fromkeys(rounds, nothing), {}, "cpu", 0.0)

    assert result["wrong_outputs"] == ["eager"]
    assert (result["fastest"], result["regret"]) == ("inductor", 0.0)


def test_the_headline_blames_the_default_and_no_other_configuration() -> None:
    diagnosis = builders.a_diagnosis(
        builders.a_trial("inductor"),
        findings=tuple(
            Finding(code=code, rule="rule", severity="note", configuration=name, message="so it is")
            for code, name in (("LD101", "inductor"), ("LD103", "eager"), ("LD201", None), ("LD401", None))
        ),
        recommendation=builders.a_recommendation("eager"),
    )
    timed = {
        "median_seconds": {"eager": 1.0, "inductor": 1.7},
        "rounds": {"eager": [1.0, 1.0, 1.0], "inductor": [1.7, 1.6, 1.8]},
        "recommended": "eager",
    }

    told = headline(diagnosis, timed)

    assert told["compiled_over_eager"] == pytest.approx(1.7)
    assert [sentence[:5] for sentence in told["blamed"]] == ["LD101", "LD201"]


def test_training_and_large_networks_are_expected_to_take_longer() -> None:
    small, training = expected_seconds("unet/inference"), expected_seconds("unet/training")

    assert small < training < expected_seconds("resnet50/training") <= 240
    assert expected_seconds("resnet50/inference") > small


def test_options_by_hand_are_those_of_the_configurations() -> None:
    from layoutdoctor.analysis.how_to_apply import effective_options

    assert {one.name: effective_options(one) for one in DEFAULT_CONFIGURATIONS if effective_options(one)} == OPTIONS


@pytest.mark.slow
@pytest.mark.compile
def test_an_item_runs_to_its_end_on_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of the casebook, all of it: diagnosis, traces, hand-made configurations, times, tables."""
    item = "case-21-as-strided-channels-last/inference"
    command = ["diagnoses.py", str(tmp_path), "--device", "cpu", "--small", "--only", item, "--budget", "0.5"]
    monkeypatch.setattr("sys.argv", command)

    assert diagnoses.main() == 0

    result = json.loads((tmp_path / "diagnoses.json").read_text(encoding="utf-8"))["items"][item]
    assert "error" not in result
    names = {one.name for one in DEFAULT_CONFIGURATIONS}
    assert result["trials"].keys() == names == result["timing"]["median_seconds"].keys()
    assert result["timing"]["errors"] == {}
    assert result["conversions"].keys() >= {"eager", "inductor"}
    assert "eager-channels-last" in result["timing"]["wrong_outputs"]  # it reads raw storage
    folder = item.replace("/", ".")
    assert {f"{folder}/diagnosis.json.gz", f"{folder}/eager.json.gz", f"{folder}/plain-eager.json.gz"} <= set(
        Archive(tmp_path / "traces.tar").names
    )
    assert f"| {item} |" in render(tmp_path)
