"""What a scan writes while it runs: lines of JSON, and a Parquet file that DuckDB and pandas read."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import msgspec
import pytest

from layoutdoctor.diagnosis.scan import ScannedRows
from layoutdoctor.errors import UsageError
from layoutdoctor.fleet.scanning import lines_file, parquet_file, scan

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def found() -> list[ScannedRows]:
    seen: list[ScannedRows] = []
    scan(TRACES, listener=lambda one, total: seen.append(one))
    return seen


def test_lines_are_whole_at_once_and_read_back(tmp_path: Path, found: list[ScannedRows]) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"old")
    add = lines_file(tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_bytes() == b"old"  # until there is something to write
    for number, one in enumerate(found, 1):
        add([one])
        assert len((tmp_path / "x.jsonl").read_bytes().splitlines()) == number

    text = (tmp_path / "x.jsonl").read_bytes()
    assert [msgspec.json.decode(line, type=ScannedRows) for line in text.splitlines()] == found


def test_duckdb_and_pandas_read_the_table(tmp_path: Path, found: list[ScannedRows]) -> None:
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    path = tmp_path / "x.parquet"
    with parquet_file(path) as add:
        for one in found:
            add([one])
            assert not path.exists()

    rules = dict(
        duckdb.sql(f"select rule, sum(seconds) from '{path}' where is_counted and rank = 0 group by all").fetchall()
    )
    expected: dict[str | None, int] = {}
    for one in found:
        for row in one.rows:
            if row.is_counted and one.file.rank == 0:
                expected[row.rule] = expected.get(row.rule, 0) + row.nanoseconds
    assert rules == pytest.approx({rule: 1e-9 * time for rule, time in expected.items()})
    frame = pandas.read_parquet(path)
    assert len(frame) == sum(len(one.rows) for one in found)
    assert (
        list(frame.columns)
        == (
            "file rank device_name step device rule owner kernel op module shape direction is_counted count seconds "
            "exposed_seconds bytes"
        ).split()
    )
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_that_is_not_whole_is_not_there(tmp_path: Path, found: list[ScannedRows]) -> None:
    pytest.importorskip("pyarrow")
    with contextlib.suppress(KeyboardInterrupt), parquet_file(tmp_path / "x.parquet") as add:
        add([found[0]])
        raise KeyboardInterrupt

    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UsageError, match=r"cannot write 'x.parquet': PyArrow is not installed; pip install 'layout"):
        parquet_file(tmp_path / "x.parquet").__enter__()
