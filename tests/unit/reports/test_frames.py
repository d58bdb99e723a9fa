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

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


TABLES = ("trials", "rounds", "conversions", "redundant_pairs", "convolutions", "findings")


def known(frame: pandas.DataFrame, column: str) -> list[Any]:
    """A column as Python values, None where missing."""
    return [None if pandas.isna(value) else value for value in frame[column].tolist()]


LAYOUTS = (
    a_conversion("a", source=contiguous((2, 3, 4, 5)), target=channels_last((2, 3, 4, 5))),
    a_conversion("b", source=blocked((2, 3, 4, 5)), target=None, seconds=None, bytes_moved=None),
    a_conversion("c", source=None, target=Layout(("s0", 3), ("s1", 1), ()), seconds=0.0, bytes_moved=0),
    a_conversion("e", source=contiguous((1, 1, 4, 5)), target=None),
)
RECORDS = {"kernels": kernels(*LAYOUTS), "redundant_pairs": (a_pair(location=a_location(3)),)}
CASES = {
    **{name: STORIES[name]() for name in ("training", "trace_of_owners")},
    "all layouts, and the same once more": a_diagnosis(
        a_trial("inductor", measurement=a_measurement(1e-3, 2e-3), **RECORDS),
        a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", **RECORDS),
    ),
    "a graph's own": a_diagnosis(a_trial(graphs=(a_graph(name="graph 7", conversions=(a_conversion("a"),)),))),
}


def test_tables_are_as_reviewed(update_golden: bool) -> None:
    frames = {f"{name}, {table}": case.to_pandas(table) for name, case in CASES.items() for table in TABLES}

    reviewed.check("tables", {name: frame.to_csv(na_rep="NA") for name, frame in frames.items()}, update=update_golden)


@pytest.mark.parametrize("story", STORIES)
def test_every_entry_of_a_record_has_its_row(story: str) -> None:
    diagnosis = STORIES[story]()
    own = [trial for trial in diagnosis.trials if trial.status != "same_as"]
    listed = [trial.kernels.conversions if trial.kernels else () for trial in own]
    found = [
        c for t, ran in zip(own, listed, strict=True) for c in (*(c for g in t.graphs for c in g.conversions), *ran)
    ]
    rounds = [one for trial in diagnosis.trials if trial.measurement for one in trial.measurement.round_seconds]

    assert known(diagnosis.to_pandas(), "configuration") == [trial.name for trial in diagnosis.trials]
    assert known(diagnosis.to_pandas("rounds"), "seconds") == rounds
    assert known(diagnosis.to_pandas("conversions"), "id") == [conversion.id for conversion in found]
    assert known(diagnosis.to_pandas("redundant_pairs"), "first") == [pair.first for pair in diagnosis.redundant_pairs]
    assert known(diagnosis.to_pandas("findings"), "code") == [finding.code for finding in diagnosis.findings]


@pytest.mark.parametrize("table", TABLES)
def test_columns_and_dtypes_are_the_same_for_every_diagnosis_and_numbers_have_a_unit(table: str) -> None:
    empty = msgspec.structs.replace(a_diagnosis(), trials=()).to_pandas(table)

    assert len(empty) == 0
    assert {str(dtype) for dtype in empty.dtypes} <= {"string", "Int64", "float64", "boolean"}
    for make in STORIES.values():
        assert dict(make().to_pandas(table).dtypes) == dict(empty.dtypes)
    numbers = {str(name) for name, dtype in empty.dtypes.items() if str(dtype) == "float64"}
    ratios = {"ratio_high", "ratio_low", "ratio_median"}
    assert not {name for name in numbers if not name.endswith(("_share", "seconds"))} - {*ratios, "max_abs_error"}


def test_an_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="cannot make table 'kernels': expected one of conversions, convolutions, "):
        a_diagnosis().to_pandas("kernels")


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="cannot make table 'trials': pandas is not installed; pip install pandas"):
        a_diagnosis().to_pandas()

    (tmp_path / "pandas.py").write_text("import a_module_that_pandas_needs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_pandas_needs"):  # which is not called missing pandas
        a_diagnosis().to_pandas()
