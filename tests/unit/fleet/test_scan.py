"""What many recorded runs add up to: exact, and the same however it is added."""

from __future__ import annotations

import gzip
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutdoctor
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.diagnosis.scan import Scan, ScannedFile, ScannedRows, ScanRow, ScanSum
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.fleet import examining
from layoutdoctor.fleet.examining import examine_source
from layoutdoctor.fleet.scanning import parquet_file, scan
from layoutdoctor.fleet.sources import find_sources
from layoutdoctor.reports import render_scan

TRACES = Path(__file__).parents[2] / "traces"
SMALL = (
    "a100_alexnet",
    "h100_vit_patch_embed",
    "h100_bert_control",
    "mi300_graph_replay_control",
    "a100_triton_example",
)


@cache
def all_traces() -> Scan:
    return scan(TRACES)


def test_the_sums_are_the_exact_counts_of_the_traces() -> None:
    files = {file.name.removesuffix(".json.gz"): file for file in all_traces().files}

    counts = {name: (file.conversion_count, file.conversion_nanoseconds) for name, file in files.items()}
    assert counts["a100_alexnet"] == (12, 277_000)
    assert counts["a100_conv_training_nccl"] == (633, 15_120_910)
    assert counts["h100_vit_patch_embed"] == (3, 23_072)
    assert counts["mi300_resnet_act_checkpoint"] == (999, 5_642_202)
    assert counts["h100_bert_control"] == counts["a100_particle_transformer_cast_decoy"] == (0, 0)
    assert files["mi300_resnet_act_checkpoint"].kernel_nanoseconds == 97_255_826
    assert {file.rank for file in files.values()} == {0, None}
    whole = sum(file.conversion_nanoseconds for file in files.values())
    totals = all_traces().totals
    for dimension in set(totals) - {"aside"}:
        assert sum(total.nanoseconds for total in totals[dimension].values()) == whole, dimension
    assert totals["kernel"]["nchwToNhwcKernel"].file_count == 6
    assert set(totals["aside"]) == {"LD110"}
    assert msgspec.json.decode(to_json(all_traces()), type=Scan) == all_traces()
    small = [TRACES / f"{name}.json.gz" for name in SMALL]
    with ThreadPoolExecutor(2) as executor:
        assert to_json(scan(*small, executor=executor)) == to_json(scan(*small))


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")))
def test_a_file_says_what_its_own_report_says(path: Path) -> None:
    diagnosis = layoutdoctor.examine_trace(path)
    (source,) = find_sources([path])

    (found,) = examine_source(source)

    file = found.file
    (trial,) = diagnosis.trials
    counted = counted_conversions(trial)
    assert (file.conversion_count, file.kernel_count) == (sum(c.count for c in counted), trial.kernel_summary.count)
    assert file.conversion_nanoseconds == round(1e9 * sum(c.seconds or 0.0 for c in counted))
    assert file.exposed_nanoseconds == round(1e9 * sum(c.exposed_seconds or 0.0 for c in counted))
    assert [finding.code for finding in file.findings] == [finding.code for finding in diagnosis.findings]
    rows = [row for row in found.rows if row.is_counted]
    assert sum(row.nanoseconds for row in rows) == file.conversion_nanoseconds
    assert sum(row.bytes_moved or 0 for row in rows) == sum(c.bytes_moved or 0 for c in counted)
    assert {row.rule for row in found.rows} - {None} <= {finding.code for finding in diagnosis.findings}
    assert len(set(found.rows)) == len(found.rows)


amounts = st.integers(0, 2**40)
rows = st.builds(
    ScanRow,
    rule=st.sampled_from([None, "LD101", "LD111"]),
    step=st.sampled_from([None, "ProfilerStep#1"]),
    owner=st.just("library"),
    kernel=st.sampled_from([None, "a", "b"]),
    direction=st.just("other"),
    is_counted=st.booleans(),
    count=st.integers(0, 100),
    nanoseconds=amounts,
    exposed_nanoseconds=st.none() | amounts,
    bytes_moved=st.none() | amounts,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(rows, max_size=4), max_size=6), st.randoms(use_true_random=False))
def test_files_may_be_added_in_any_order(rows_of_files: list[list[ScanRow]], chance: Any) -> None:
    files = [
        ScannedRows(file=ScannedFile(name=f"f{number}"), rows=tuple(found))
        for number, found in enumerate(rows_of_files)
    ]
    first, second = ScanSum(), ScanSum()
    for file in files:
        first.add(file)
    chance.shuffle(files)
    for file in files:
        second.add(file)

    assert to_json(first.result()) == to_json(second.result())


def test_the_rank_of_a_trace_is_its_names_else_its_own_else_its_folders(tmp_path: Path) -> None:
    trace = {"traceEvents": [], "distributedInfo": {"rank": 4}}
    for name, content in {"rank1.json": trace, "r2/a.json": trace, "r3/b.json": {"traceEvents": []}}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")

    assert {file.name: file.rank for file in scan(tmp_path).files} == {"rank1.json": 1, "r2/a.json": 4, "r3/b.json": 3}


def test_what_cannot_be_examined_is_a_row_and_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty.json").touch()
    (tmp_path / "text.json").write_text("hello", encoding="utf-8")
    (tmp_path / "line\nbreak.json").write_text("{", encoding="utf-8")
    (tmp_path / "cut.json.gz").write_bytes((TRACES / "h100_vit_patch_embed.json.gz").read_bytes()[:3000])
    (tmp_path / "good.json.gz").symlink_to(TRACES / "a100_alexnet.json.gz")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "large.json.gz").write_bytes(gzip.compress(b" " * 5_000_000 + b"{}"))

    found = scan(tmp_path, max_bytes=4_000_000)

    failures = {file.name: file.failure for file in found.files}
    assert failures.pop("good.json.gz") is None
    assert failures.pop("cut.json.gz") is None  # what is there is examined
    assert set(failures) == {"empty.json", "text.json", "line\nbreak.json", "gone.json", "large.json.gz"}
    assert all(failures.values())
    assert "limit" in str(failures["large.json.gz"])
    assert "line break.json" in render_scan(found, "markdown")
    assert str(tmp_path) not in to_json(found).decode()


def test_a_fault_of_ours_costs_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> object:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(examining, "run_rules", fail)

    (file,) = scan(TRACES / "a100_alexnet.json.gz").files

    assert file.failure == "layoutdoctor failed: ZeroDivisionError: by zero; please report it"


def test_a_scan_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, kept = tmp_path / "traces", tmp_path / "kept"
    folder.mkdir()
    for name in SMALL:
        (folder / f"{name}.json.gz").write_bytes((TRACES / f"{name}.json.gz").read_bytes())
    first = scan(folder, resume=kept)
    lines = (kept / "files.jsonl").read_bytes()
    (folder / "a100_alexnet.json.gz").write_bytes((TRACES / "h100_vit_patch_embed.json.gz").read_bytes())  # another
    of_another_version = lines[: lines.index(b"\n") + 1].replace(f'"{layoutdoctor.__version__}"'.encode(), b'"0.0.0"')
    (kept / "files.jsonl").write_bytes(of_another_version + lines[:-20])  # ended while it was written
    examined = []
    monkeypatch.setattr(
        examining,
        "read_recorded",
        lambda path, most, read=examining.read_recorded: examined.append(path.name) or read(path, most),
    )

    second = scan(folder, resume=kept)

    assert sorted(examined) == ["a100_alexnet.json.gz", f"{max(SMALL)}.json.gz"]
    others = [file for file in first.files if file.name != "a100_alexnet.json.gz"]
    assert [file for file in second.files if file.name != "a100_alexnet.json.gz"] == others
    assert to_json(second) == to_json(scan(folder)) == to_json(scan(folder, resume=kept))
    seen: list[ScannedRows] = []
    scan(folder, resume=kept, listener=lambda rows, total: seen.append(rows))
    assert {rows.fingerprint for rows in seen} == {None}  # it is not scrubbed, and for nobody else


@pytest.mark.parametrize("content", [b"mine", b"\xff\n", b'{"file": {"name": "x", "rank": "3"}, "rows": []}\n'])
def test_lines_of_somebody_else_are_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    kept = tmp_path / "files.jsonl"
    kept.write_bytes(content)

    with pytest.raises(UsageError, match=r"cannot resume from '.*files\.jsonl': line 1 is no result of a scan"):
        scan(TRACES / "a100_alexnet.json.gz", resume=tmp_path)

    assert kept.read_bytes() == content


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "cannot scan with 0 processes: expected 1 or more"),
        ({"resume": Path("/dev/null/x")}, "cannot resume from '/dev/null/x': "),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as failure:
        scan(TRACES / "a100_alexnet.json.gz", **options)  # type: ignore[arg-type]

    assert str(failure.value).startswith(message)


@pytest.fixture(scope="module")
def found() -> list[ScannedRows]:
    seen: list[ScannedRows] = []
    scan(TRACES, listener=lambda one, total: seen.append(one))
    return seen


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


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UsageError, match=r"cannot write 'x.parquet': PyArrow is not installed; pip install 'layout"):
        parquet_file(tmp_path / "x.parquet").__enter__()


def test_the_device_of_kernels_that_two_devices_started_at_once_is_left_out(tmp_path: Path) -> None:
    name = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
    launches = ((0, 10.0), (1, 10.0), (1, 90.0))
    kernel = {"ph": "X", "cat": "kernel", "name": name, "dur": 20.0, "pid": 0, "tid": 7}
    events = [kernel | {"ts": start, "args": {"device": device, "stream": 7}} for device, start in launches]
    (tmp_path / "two.json").write_text(json.dumps({"traceEvents": events}))

    (found,) = examine_source(*find_sources([tmp_path]))

    assert sorted((str(row.device), row.count) for row in found.rows) == [("1", 1), ("None", 2)]
