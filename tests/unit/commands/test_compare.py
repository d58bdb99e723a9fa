"""``compare`` in this process: what it reads, what it prints, what it ends with."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from builders import (
    a_conversion,
    a_diagnosis,
    a_pair,
    a_total,
    a_trace,
    a_trial,
    recorded,
)

from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.errors import TraceError, UsageError
from layoutdoctor.recording.files import kind_of_file
from layoutdoctor.run.recorded import compare

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

OPERATIONS = ("aten::cudnn_convolution", "aten::relu", "aten::add", "aten::batch_norm")


def a_run(
    conversion_count: int = 2, pairs: int = 0, count: int = 10, operations: tuple[str, ...] = OPERATIONS
) -> Diagnosis:
    found = tuple(a_conversion(f"c{n}", seconds=1.3e-4, op=operations[0]) for n in range(conversion_count))
    totals = tuple(a_total("operation", name, count=count) for name in operations)
    redundant = tuple(a_pair("c0", "c1", module=f"layer{n}") for n in range(pairs))
    return a_trace(recorded(*found, totals=totals), redundant_pairs=redundant)


def saved(folder: Path, name: str, diagnosis: Diagnosis) -> str:
    path = folder / name
    diagnosis.save(path)
    return str(path)


def run(folder: Path, old: Diagnosis, new: Diagnosis, *options: str) -> int:
    return main(["compare", saved(folder, "old.json", old), saved(folder, "new.json", new), *options])


def test_a_trace_and_a_diagnosis_of_a_model_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, a_run(), a_diagnosis()) == 2
    assert run(tmp_path, a_diagnosis(), a_run()) == 2

    err = capsys.readouterr().err
    assert err.count("cannot compare 'trace.json.gz', a recorded trace, with 'model.py', a diagnosis of a model") == 2
    assert "Traceback" not in err


def test_little_in_common_is_a_warning_and_nothing_in_common_an_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = tuple(f"aten::attention_{n}" for n in range(20))

    assert run(tmp_path, a_run(), a_run(0, operations=("aten::add", *others))) == 0
    assert "Apparently different runs: 1 of 24 operations in common" in capsys.readouterr().out
    assert run(tmp_path, a_run(), a_run(0, operations=others)) == 4
    assert "Nothing in common" in capsys.readouterr().out

    assert run(tmp_path, a_diagnosis(a_trial("eager")), a_diagnosis(a_trial("inductor"))) == 4


def test_fail_on_regression_fails_on_one_only_where_asked_and_passes_none_that_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, a_run(2), a_run(9)) == 0
    assert run(tmp_path, a_run(2), a_run(9), "--fail-on", "regression") == 1
    assert run(tmp_path, a_run(9), a_run(2), "--fail-on", "regression") == 0
    assert run(tmp_path, a_run(2), a_run(2, pairs=1), "--fail-on", "regression") == 1

    assert run(tmp_path, a_run(count=30), a_run(count=50), "--fail-on", "regression") == 4
    assert "cannot judge a regression: the two seem not to have done the same work" in capsys.readouterr().err

    assert run(tmp_path, a_run(), a_run(), "--fail-on", "error") == 2
    assert "regression" in capsys.readouterr().err


def test_reports_are_written_by_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("r.json", "r.md", "r.txt")]
    options = [word for file in files for word in ("--output", str(file))]

    assert run(tmp_path, a_run(4), a_run(1), *options) == 0
    assert json.loads(files[0].read_bytes())["kind"] == "trace-comparison"
    assert files[1].read_text().startswith("## ")
    assert files[2].read_text() == capsys.readouterr().out


def test_a_saved_diagnosis_is_told_from_a_trace_by_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for content, is_diagnosis in (
        (to_json(a_run()), True),
        (to_json(a_run())[:300], True),
        (json.dumps(json.loads(to_json(a_run())), sort_keys=True).encode(), True),
        (gzip.compress(to_json(a_run())), True),
        (b'{"a": "' + b"x" * 100_000 + b'"}', False),
        (b'{"traceEvents": [], "a": "' + b"x" * 100_000 + b'", "layoutdoctor_version": "0.1.0"}', False),
        (b"#" + b"x" * 100_000 + b'"layoutdoctor_version": "0.1.0"', False),
        (b'{"schemaVersion": 1, "traceEvents": []}', False),
        (b'{"schema_version": 1, "traceEvents": [{"ph": "X", "name": "a"}]}', False),
        (b'[{"ph": "X", "name": "a"}]', False),
        (b"onednn_verbose,v1,primitive,exec,cpu,reorder", False),
        (b"SQLite format 3\x00", False),
        (b"", False),
    ):
        path.write_bytes(content)
        assert (kind_of_file(path) == "diagnosis") is is_diagnosis, content[:80]


def test_compare_takes_records_and_paths(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.json", a_run(4))

    assert isinstance(compare(path, a_run(1)), TraceComparison)
    assert isinstance(compare(tmp_path / "a.json", path), TraceComparison)
    assert isinstance(compare(a_diagnosis(), a_diagnosis()), ModelComparison)
    with pytest.raises(UsageError, match="expected two of the same kind"):
        compare(path, a_diagnosis())
    with pytest.raises(TraceError, match="there is no such file"):
        compare(a_run(), tmp_path / "missing")


def test_models_that_cannot_be_judged_are_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = a_diagnosis(interrupted="interrupted from the keyboard")

    assert run(tmp_path, a_diagnosis(), unfinished, "--fail-on", "regression") == 4
    assert "cannot judge a regression: the new diagnosis was not finished: interrupted" in capsys.readouterr().err
    assert run(tmp_path, a_diagnosis(), unfinished) == 0
