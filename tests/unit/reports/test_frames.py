"""The tables for pandas hold the record's numbers, no more and no less, in columns that never change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pandas
import pytest
import reviewed
from builders import (
    a_conversion,
    a_decision,
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


TABLES = ("trials", "rounds", "conversions", "redundant_pairs", "convolutions", "findings")
NONE, CARD = kernels(), msgspec.structs.replace(a_decision(), convolutions=())
DTYPES = {"string", "Int64", "float64", "boolean"}


def known(frame: pandas.DataFrame, column: str) -> list[Any]:
    """A column as Python values, None where missing."""
    return [None if pandas.isna(value) else value for value in frame[column].tolist()]


LAYOUTS = (
    a_conversion("a", source=contiguous((2, 3, 4, 5)), target=channels_last((2, 3, 4, 5))),
    a_conversion("b", source=blocked((2, 3, 4, 5)), target=None, seconds=None, bytes_moved=None),
    a_conversion("c", source=None, target=Layout(("s0", 3), ("s1", 1), ()), seconds=0.0, bytes_moved=0),
    a_conversion("d", source=None, target=None),
    a_conversion("e", source=contiguous((1, 1, 4, 5)), target=None),
)
RECORDS = {"kernels": kernels(*LAYOUTS), "redundant_pairs": (a_pair(location=a_location(3)),)}
CASES = {
    **{name: STORIES[name]() for name in ("gain_with_findings", "training", "little_recorded", "trace_of_owners")},
    "all layouts, and the same once more": a_diagnosis(
        a_trial("inductor", measurement=a_measurement(1e-3, 2e-3), **RECORDS),
        a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", **RECORDS),
    ),
    "a graph's own": a_diagnosis(a_trial(graphs=(a_graph(name="graph 7", conversions=(a_conversion("a"),)),))),
}


def test_tables_are_as_reviewed(update_golden: bool) -> None:
    frames = {f"{name}, {table}": case.to_pandas(table) for name, case in CASES.items() for table in TABLES}

    reviewed.check("tables", {name: frame.to_csv(na_rep="NA") for name, frame in frames.items()}, update=update_golden)


@for_each("story", STORIES)
def test_every_entry_of_a_record_has_its_row(story: str) -> None:
    diagnosis = STORIES[story]()
    own = [trial for trial in diagnosis.trials if trial.status != "same_as"]
    found = [c for t in own for c in (*(c for g in t.graphs for c in g.conversions), *(t.kernels or NONE).conversions)]
    rounds = [one for trial in diagnosis.trials if trial.measurement for one in trial.measurement.round_seconds]
    convolutions = [one for trial in own for graph in trial.graphs for one in (graph.decision or CARD).convolutions]

    assert known(diagnosis.to_pandas(), "configuration") == [trial.name for trial in diagnosis.trials]
    assert known(diagnosis.to_pandas("rounds"), "seconds") == rounds
    assert known(diagnosis.to_pandas("conversions"), "id") == [conversion.id for conversion in found]
    assert known(diagnosis.to_pandas("redundant_pairs"), "first") == [pair.first for pair in diagnosis.redundant_pairs]
    assert known(diagnosis.to_pandas("convolutions"), "node") == [convolution.node for convolution in convolutions]
    assert known(diagnosis.to_pandas("findings"), "code") == [finding.code for finding in diagnosis.findings]


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
