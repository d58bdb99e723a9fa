"""The tables say what was confirmed, mark what was not, and leave out nothing that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import benchmark_results
import pytest
from benchmark_results import an_item, found, removed
from tables import conversion_verdict, is_kept, pair_verdict, render, savings

if TYPE_CHECKING:
    from pathlib import Path


def rows_with(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {start}")]


def test_a_network_that_reaches_all_goals(tmp_path: Path) -> None:
    benchmark_results.write(tmp_path, "diagnoses", {"conv3d-stack-bf16/inference": an_item()})

    text = render(tmp_path)

    assert rows_with(text, "conv3d-stack-bf16/inference")[0] == (
        "| conv3d-stack-bf16/inference | 3 / 3 | 2 / 2 | 20.0% / 20.6% | inductor-channels-last "
        "| inductor-channels-last | 0.0% |"
    )
    assert "Goals reached: conversions 1 of 1, pairs 1 of 1, promise 1 of 1, regret 1 of 1." in text
    assert "**no**" not in text
    assert "1.68 | inductor-channels-last | 1.26x" in text
    assert "- conv3d-stack-bf16/inference: LD101 round-trip-conversion: two of them" in text
    assert "torch 2.11.0, cudnn 91002, device a GPU, date 2026-01-02." in text
    assert "1 of 1 within 5%" in text
    assert "proves nothing" not in text


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        ({"conversions": {"inductor": found(counted={"nchwToNhwcKernel": 1})}}, "3 / 2 **no**"),
        ({"conversions": {"inductor": found(live={"nchwToNhwcKernel": 1})}}, "2 / 2, 1 missed **no**"),
        ({"conversions": {"inductor": found(examined={})}}, "3 / 1, 2 missed **no**"),
        ({"conversions": {"inductor": found(compiler_present=0, absent=["triton_poi_fused_0"])}}, "3 / 2 **no**"),
        ({"removal": {"eager": removed(), "inductor": removed(2, 1)}}, "2 / 1 **no**"),
        ({"timing": {"speedup_promised": 1.6}}, "37.5% / 20.6% **no**"),
        ({"timing": {"regret": 0.02, "fastest": "eager"}}, "2.0% **no**"),
    ],
)
def test_what_misses_its_goal_is_marked(tmp_path: Path, change: dict[str, Any], cell: str) -> None:
    benchmark_results.write(tmp_path, "diagnoses", {"unet/training": an_item(**change)})

    (row, *_) = rows_with(render(tmp_path), "unet/training")

    assert f"| {cell} |" in row
    assert row.count("**no**") == 1


def test_what_could_not_be_asked_is_no_verdict(tmp_path: Path) -> None:
    item = an_item(
        conversions={"inductor": found(kernel_count=0, live={}, examined={}, counted={})},
        removal={"inductor": removed(2, None, why_not="the trace holds no kernels of a device")},
        timing={"regret": None, "speedup_promised": None},
    )
    benchmark_results.write(tmp_path, "diagnoses", {"unet/training": item}, small=True)

    text = render(tmp_path)

    assert rows_with(text, "unet/training")[0].startswith("| unet/training | 1 / 1 | 2 / - | - |")
    assert "conversions 0 of 0, pairs 0 of 0, promise 0 of 0, regret 0 of 0" in text
    assert "the trace holds no kernels of a device" in text
    assert "proves nothing" in text


def test_disagreements_are_listed_one_by_one(tmp_path: Path) -> None:
    item = an_item(
        conversions={
            "eager": found(counted={"nchwToNhwcKernel": 4}),
            "inductor": found(candidates=["triton_poi_fused_cat_3"], look_alikes=["sm90_xmma_nhwc_kernel"]),
        },
        trials={"inductor": {"status": "failed", "failure": "RuntimeError: boom"}},
        timing={"errors": {"eager": "OutOfMemoryError: no"}, "wrong_outputs": ["inductor"]},
    )
    benchmark_results.write(tmp_path, "diagnoses", {"unet/training": item})

    text = render(tmp_path)

    assert "unet/training eager: listed {'nchwToNhwcKernel': 1, 'nhwcToNchwKernel': 1}" in text
    assert "only move elements, not listed: ['triton_poi_fused_cat_3']" in text
    assert "    - `sm90_xmma_nhwc_kernel`" in text
    assert "unet/training inductor: failed: RuntimeError: boom" in text
    assert "unet/training eager by hand: OutOfMemoryError: no" in text
    assert "other outputs than the reference: inductor" in text


def test_peak_memory_that_is_off_is_named(tmp_path: Path) -> None:
    item = an_item(timing={"peak_memory_bytes": {"eager": [1000, 1200], "inductor": [1000, 990], "other": [0, None]}})
    benchmark_results.write(tmp_path, "diagnoses", {"unet/training": item})

    text = render(tmp_path)

    assert "1 of 2 within 5%" in text
    assert "- unet/training eager: +20.0%" in text


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    items = {"a/inference": an_item(traces_left_out=3), "b/inference": {"error": "ModuleNotFoundError: timm"}}
    benchmark_results.write(tmp_path, "diagnoses", items, names=["a/inference", "b/inference", "c/training"])
    (tmp_path / "timers.json").write_text("{", encoding="utf-8")

    missing = render(tmp_path).split("### Missing")[1]

    assert "- diagnoses: 1 of 3 not run: c/training" in missing
    assert "- diagnoses: b/inference failed: ModuleNotFoundError: timm" in missing
    assert "- diagnoses: 3 traces were too large to be kept" in missing
    assert "- timers: cannot be read: JSONDecodeError" in missing
    assert "- winners: was not run" in missing


def test_an_empty_directory_is_said_to_be_one(tmp_path: Path) -> None:
    text = render(tmp_path)

    assert text.count("was not run") == 5


def test_other_parts_are_tables_of_what_fits_into_a_cell(tmp_path: Path) -> None:
    items = {
        "first": {
            "calls": 3,
            "ratio": 0.98765,
            "agrees": True,
            "inside": {"count": 2},
            "long": ["x"],
            "item_seconds": 1,
        },
        "second": {"calls": 4, "text": "a | b"},
        "third": {"error": "boom"},
    }
    benchmark_results.write(tmp_path, "timers", items)

    text = render(tmp_path)

    assert "| item | calls | ratio | agrees | inside count | text |" in text
    assert "| first | 3 | 0.9877 | yes | 2 | - |" in text
    assert "| second | 4 | - | - | - | a / b |" in text
    assert "- timers: third failed: boom" in text


def test_other_parts_that_sum_themselves_up_are_taken_at_their_word(tmp_path: Path) -> None:
    items = {"claim": {"summary": "confirmed: yes; 1.2 times", "calls": 3}, "other": {"error": "boom"}}
    benchmark_results.write(tmp_path, "target_check", items)

    text = render(tmp_path)

    assert "| item | result |" in text
    assert "| claim | confirmed: yes; 1.2 times |" in text
    assert "- target_check: other failed: boom" in text


def test_verdicts_count_over_all_configurations() -> None:
    item = an_item(
        conversions={"eager": found(), "inductor": found(counted={"nchwToNhwcKernel": 3})},
        removal={"eager": removed(4, 3), "inductor": removed(5, None)},
    )

    assert conversion_verdict(item) == (6, 5, 2)
    assert pair_verdict(item) == (9, 4, 3)
    assert savings(item) == pytest.approx((0.2, 1 - 1 / 1.26))


@pytest.mark.parametrize(
    ("promised", "measured", "kept"),
    [
        (0.24, 0.2, True),
        (0.25, 0.2, False),
        (0.16, 0.2, True),
        (0.009, 0.0, True),
        (0.02, 0.0, False),
        (0.2, -0.1, False),
    ],
)
def test_a_promise_is_kept_within_a_fifth(promised: float, measured: float, kept: bool) -> None:
    assert is_kept(promised, measured) is kept
