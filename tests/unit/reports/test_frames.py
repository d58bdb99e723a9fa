"""The tables for pandas hold the record's numbers, no more and no less, in columns that never change."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pandas
import pytest
from builders import (
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_measurement,
    a_pair,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.errors import RecordError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Trial

TABLES = ("trials", "rounds", "conversions", "redundant_pairs", "convolutions", "findings")
DTYPES = {"string", "Int64", "float64", "boolean"}


def known(frame: pandas.DataFrame, column: str) -> list[Any]:
    """A column as Python values, None where missing."""
    return [None if pandas.isna(value) else value for value in frame[column].tolist()]


def own_trials(diagnosis: Diagnosis) -> list[Trial]:
    return [trial for trial in diagnosis.trials if trial.status != "same_as"]


def conversions_of(diagnosis: Diagnosis) -> list[Conversion]:
    found = []
    for trial in own_trials(diagnosis):
        for graph in trial.graphs:
            found += graph.conversions
        found += trial.kernels.conversions if trial.kernels else ()
    return found


@for_each("story", STORIES)
def test_trials_are_the_records(story: str) -> None:
    diagnosis = STORIES[story]()
    frame = diagnosis.to_pandas()

    trials = diagnosis.trials
    assert known(frame, "configuration") == [trial.name for trial in trials]
    assert known(frame, "status") == [trial.status for trial in trials]
    assert known(frame, "same_as") == [trial.same_as for trial in trials]
    assert known(frame, "median_seconds") == [t.measurement.median_seconds if t.measurement else None for t in trials]
    assert known(frame, "conversion_count") == [t.kernels.conversion_count if t.kernels else None for t in trials]
    assert known(frame, "conversion_seconds") == [t.kernels.conversion_seconds if t.kernels else None for t in trials]
    assert known(frame, "redundant_pair_count") == [len(trial.redundant_pairs) for trial in trials]
    assert known(frame, "equivalence") == [t.equivalence.status if t.equivalence else None for t in trials]
    ratios = {r.name: r for r in diagnosis.comparison.ratios} if diagnosis.comparison else {}
    for column, field in (("ratio_low", "low"), ("ratio_median", "median"), ("verdict", "verdict")):
        assert known(frame, column) == [getattr(ratios.get(trial.name), field, None) for trial in trials]
    baseline = diagnosis.comparison.baseline if diagnosis.comparison else None
    assert [trial.name for trial, yes in zip(trials, known(frame, "is_baseline"), strict=True) if yes] == (
        [baseline] if baseline in [trial.name for trial in trials] else []
    )


@for_each("story", STORIES)
def test_rounds_are_the_records_in_order(story: str) -> None:
    diagnosis = STORIES[story]()
    frame = diagnosis.to_pandas("rounds")

    measured = [trial for trial in diagnosis.trials if trial.measurement]
    expected = [
        (trial.name, number, seconds)
        for trial in measured
        for number, seconds in enumerate(trial.measurement.round_seconds if trial.measurement else ())
    ]
    assert [tuple(row) for row in frame.itertuples(index=False)] == expected


@for_each("story", STORIES)
def test_conversions_are_the_records(story: str) -> None:
    diagnosis = STORIES[story]()
    frame = diagnosis.to_pandas("conversions")
    conversions = conversions_of(diagnosis)

    for column in ("id", "owner", "direction", "tensor", "seconds", "bytes_moved", "kernel", "op", "module", "count"):
        assert known(frame, column) == [getattr(conversion, column) for conversion in conversions]
    assert known(frame, "is_fused") == [conversion.fused for conversion in conversions]
    assert known(frame, "line") == [c.location.line if c.location else None for c in conversions]
    in_kernels = sum(len(t.kernels.conversions) for t in own_trials(diagnosis) if t.kernels)
    assert known(frame, "evidence").count("kernels") == in_kernels


@for_each("story", STORIES)
def test_pairs_and_findings_are_the_records(story: str) -> None:
    diagnosis = STORIES[story]()
    pairs, findings = diagnosis.to_pandas("redundant_pairs"), diagnosis.to_pandas("findings")

    for column in ("kind", "first", "second", "seconds", "bytes_moved", "confidence", "module"):
        assert known(pairs, column) == [getattr(pair, column) for pair in diagnosis.redundant_pairs]
    for column in ("code", "severity", "message", "suggestion", "seconds", "configuration", "accepted"):
        assert known(findings, column) == [getattr(finding, column) for finding in diagnosis.findings]
    assert known(findings, "evidence") == ["; ".join(finding.evidence) for finding in diagnosis.findings]


@for_each("story", STORIES)
def test_convolutions_are_the_records(story: str) -> None:
    diagnosis = STORIES[story]()
    frame = diagnosis.to_pandas("convolutions")

    cards = [(g, g.decision) for trial in own_trials(diagnosis) for g in trial.graphs if g.decision is not None]
    assert known(frame, "node") == [c.node for _, card in cards for c in card.convolutions]
    assert known(frame, "class") == [c.class_ for _, card in cards for c in card.convolutions]
    assert known(frame, "channels_last") == [c.channels_last for _, card in cards for c in card.convolutions]
    assert known(frame, "decision_rule") == [card.rule for _, card in cards for _ in card.convolutions]
    assert known(frame, "direction") == [graph.direction for graph, card in cards for _ in card.convolutions]


@for_each("table", TABLES)
def test_columns_and_dtypes_are_the_same_for_every_diagnosis(table: str) -> None:
    empty = msgspec.structs.replace(a_diagnosis(), trials=()).to_pandas(table)

    assert len(empty) == 0
    assert len(empty.columns) > 2
    assert {str(dtype) for dtype in empty.dtypes} <= DTYPES
    for make in STORIES.values():
        frame = make().to_pandas(table)
        assert dict(frame.dtypes) == dict(empty.dtypes)
        assert list(frame.columns) == list(empty.columns)


def test_no_unit_is_missing_from_a_column_name() -> None:
    numbers = {
        name
        for table in TABLES
        for name, dtype in a_diagnosis().to_pandas(table).dtypes.items()
        if str(dtype) == "float64"
    }

    without_unit = {name for name in numbers if not str(name).endswith("seconds")}
    assert without_unit == {
        "bandwidth_share", "conversion_share", "max_abs_error", "ratio_high", "ratio_low", "ratio_median"
    }  # fmt: skip


def test_layouts_are_readable() -> None:
    symbolic = Layout(("s0", 3), ("s1", 1), ())
    conversions = (
        a_conversion("a", source=contiguous((2, 3, 4, 5)), target=channels_last((2, 3, 4, 5))),
        a_conversion("b", source=blocked((2, 3, 4, 5)), target=None),
        a_conversion("c", source=None, target=symbolic),
        a_conversion("d", source=None, target=None),
        a_conversion("e", source=contiguous((1, 1, 4, 5)), target=None),
    )
    frame = a_diagnosis(a_trial(kernels=kernels(*conversions))).to_pandas("conversions")

    assert known(frame, "shape") == ["[2, 3, 4, 5]", "[2, 3, 4, 5]", "[s0, 3]", None, "[1, 1, 4, 5]"]
    assert known(frame, "source_format") == [
        "contiguous_format", "aBcd16b", None, None, "contiguous_format or channels_last"
    ]  # fmt: skip
    assert known(frame, "source_strides")[:3] == ["[60, 20, 5, 1]", None, None]
    assert known(frame, "target_format") == ["channels_last", None, "other strides", None, None]
    assert known(frame, "target_strides")[:3] == ["[60, 1, 15, 3]", None, "[s1, 1]"]


def test_a_conversion_of_a_graph_names_the_graph() -> None:
    trial = a_trial(graphs=(a_graph(name="graph 7", conversions=(a_conversion("a"),)),), kernels=kernels())

    frame = a_diagnosis(trial).to_pandas("conversions")

    assert (known(frame, "evidence"), known(frame, "graph")) == (["graph"], ["graph 7"])


def test_a_trial_that_is_the_same_as_another_one_adds_rows_to_the_trials_only() -> None:
    records = {
        "kernels": kernels(a_conversion("a")),
        "redundant_pairs": (a_pair(location=a_location(3)),),
    }
    first = a_trial("inductor", measurement=a_measurement(1e-3, 2e-3), **records)
    again = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", **records)
    diagnosis = a_diagnosis(first, again)

    assert len(diagnosis.to_pandas("trials")) == 2
    for table in ("conversions", "redundant_pairs"):
        assert known(diagnosis.to_pandas(table), "configuration") == ["inductor"]
    assert len(diagnosis.to_pandas("redundant_pairs")) == len(diagnosis.redundant_pairs) == 1


def test_missing_stays_missing_and_zero_stays_zero() -> None:
    conversions = (a_conversion("a", seconds=None, bytes_moved=None), a_conversion("b", seconds=0.0, bytes_moved=0))
    frame = a_diagnosis(a_trial(kernels=kernels(*conversions))).to_pandas("conversions")

    assert known(frame, "seconds") == [None, 0.0]
    assert known(frame, "bytes_moved") == [None, 0]
    assert frame["bytes_moved"].sum() == 0


def test_an_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="cannot make table 'kernels': expected one of conversions, convolutions, "):
        a_diagnosis().to_pandas("kernels")


def test_a_number_that_no_column_holds_is_named() -> None:
    diagnosis = a_diagnosis(a_trial(kernels=kernels(a_conversion(bytes_moved=2**70))))

    with pytest.raises(RecordError, match=r"'bytes_moved' of table 'conversions': .* outside of 64 bits"):
        diagnosis.to_pandas("conversions")


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(UsageError, match="cannot make table 'trials': pandas is not installed; pip install pandas"):
        a_diagnosis().to_pandas()


def test_a_pandas_that_cannot_be_loaded_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("import a_module_that_pandas_needs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas")

    with pytest.raises(ModuleNotFoundError, match="a_module_that_pandas_needs"):
        a_diagnosis().to_pandas()


def test_pandas_is_loaded_for_a_table_only() -> None:
    code = "import sys, layoutdoctor.reports.frames; print('pandas' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"


def test_frames_of_two_diagnoses_go_together() -> None:
    first, second = STORIES["gain_with_findings"](), msgspec.structs.replace(STORIES["nothing_measured"]())

    both = pandas.concat([first.to_pandas(), second.to_pandas()], ignore_index=True)

    assert dict(both.dtypes) == dict(first.to_pandas().dtypes)
    assert len(both) == len(first.trials) + len(second.trials)
