"""``show`` and its older names: traces, tables and logs, saved diagnoses, and several files of several kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from recorded_builders import a_recording

import layoutdoctor
from layoutdoctor.__main__ import main
from layoutdoctor.recording.saved import save_recording

if TYPE_CHECKING:
    import pytest

TRACES = Path(__file__).parents[2] / "traces"
PATCH_EMBED = TRACES / "h100_vit_patch_embed.json.gz"
WAN = TRACES / "h100_wan21_kernel_summary.csv"


def kernel(number: int, name: str = "gemm") -> dict[str, object]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10 * number, "dur": 5, "args": {}}


def a_file(folder: Path, *events: dict[str, object], name: str = "t.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": list(events)}), encoding="utf-8")
    return path


def test_the_report_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["show", str(PATCH_EMBED)])

    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert "Layout conversions take 23.1 us of 1.22 ms" in out
    assert str(layoutdoctor.examine_trace(PATCH_EMBED)) == out


def test_an_annotated_trace_that_cannot_be_written_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("layoutdoctor.reports.annotated_trace.write_annotated_trace", full)

    status = main(["show", str(PATCH_EMBED), "--output", str(tmp_path / "annotated.json.gz"), "--force"])

    out, err = capsys.readouterr()
    assert (status, "Layout conversions take 23.1 us" in out) == (3, True)
    assert err.startswith("layoutdoctor: error: cannot write '/")
    assert err.endswith("': No space left on device\n")


def test_a_file_that_cannot_be_read_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["show", str(tmp_path / "missing.json"), str(PATCH_EMBED)])

    out, err = capsys.readouterr()
    assert status == 3
    assert "there is no such file" in err
    assert "Layout conversions take 23.1 us" in out


def test_a_trace_without_kernels_concludes_nothing_and_one_without_conversions_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(a_file(tmp_path))]) == 4
    assert "Nothing can be said: the trace holds no device kernels" in capsys.readouterr().out
    assert main(["show", str(a_file(tmp_path, kernel(0), kernel(1)))]) == 0
    assert "No layout conversion can be shown in 2 kernels" in capsys.readouterr().out


def test_launches_without_kernels_are_a_run_on_a_gpu_that_the_profiler_did_not_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    operation = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": {}}
    path = a_file(tmp_path, operation, {**launch, "args": {"correlation": 3}})
    assert main(["show", str(path)]) == 4
    out = capsys.readouterr().out
    assert "Nothing can be said: the trace holds no device kernels" in out
    assert "NVreg_RestrictProfilingToAdminUsers=0" in out
    assert "ONEDNN_VERBOSE" not in out
    assert "1 kernel was launched, and none was recorded" in " ".join(out.split())
    assert layoutdoctor.examine_trace(path).subject.device == "cuda"


def test_a_run_on_mps_whose_kernels_no_trace_has_is_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = {"ph": "X", "cat": "cpu_op", "name": "aten::_mps_convolution", "pid": 1, "tid": 1, "ts": 0, "dur": 5}

    assert main(["show", str(a_file(tmp_path, {**operation, "args": {}}))]) == 4
    out = capsys.readouterr().out
    assert "Kineto trace · mps" in out
    assert "torch.profiler records no kernels of MPS" in out
    assert "ONEDNN_VERBOSE" not in out


def test_a_run_on_a_gpu_of_which_only_the_host_was_recorded_is_not_sent_to_onednn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = {"ph": "X", "cat": "cpu_op", "name": "aten::cudnn_convolution", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    table = tmp_path / "table.txt"
    table.write_text(
        "Name                     Self CPU %  Self CPU   # of Calls\n"
        "aten::cudnn_convolution      40.00%   4.000ms           20\n"
        "aten::copy_                   4.60%   0.500ms           10\n",
        encoding="utf-8",
    )

    for path in (a_file(tmp_path, {**operation, "args": {}}), table):
        assert main(["show", str(path)]) == 4
        out = " ".join(capsys.readouterr().out.split())
        assert "cuda Nothing can be said: the t" in out
        assert "kernels were not recorded (ProfilerActivity.CUDA)" in out
        assert "ONEDNN_VERBOSE" not in out
        assert "NVreg" not in out


def test_the_limit_is_said_with_the_way_to_raise_it(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["show", str(PATCH_EMBED), "--max-bytes", "100000"])

    assert status == 3
    assert "raise the limit: --max-bytes 200000" in capsys.readouterr().err
    for number in ("0", "-5", "many"):
        assert main(["show", str(PATCH_EMBED), f"--max-bytes={number}"]) == 2


def test_what_is_none_of_these_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    for content, message in ((b"", "it is empty"), (b'{"a": 1}', "JSON without a list 'traceEvents'")):
        path.write_bytes(content)

        assert main(["show", str(path)]) == 3, content
        err = capsys.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1


def test_each_file_is_shown_as_what_it_is_under_each_name_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, packed = tmp_path / "saved", tmp_path / "d.json.gz"
    main(["show", str(PATCH_EMBED), "--output", str(tmp_path / "d.json"), "-q"])
    (tmp_path / "d.json").rename(saved)
    layoutdoctor.load(saved).save(packed)
    save_recording(a_recording(), tmp_path / "r")
    capsys.readouterr()
    for name, status in (
        (saved, 0),
        (packed, 0),
        (tmp_path / "r", 0),
        (PATCH_EMBED, 0),
        (WAN, 0),
        (tmp_path / "gone", 3),
    ):
        shown = set()
        for command in ("show", "trace", "examine", "render"):
            assert main([command, str(name)]) == status, command
            shown.add(tuple(capsys.readouterr()))
        assert len(shown) == 1, name
    helped = set()
    for command in ("show", "trace", "examine", "render"):
        main([command, "--help"])
        helped.add(capsys.readouterr().out)
    assert len(helped) == 1

    assert main(["show", str(saved), str(PATCH_EMBED), str(tmp_path / "r"), "--format", "json"]) == 0
    found = [one["subject"]["name"] for one in json.loads(capsys.readouterr().out)]
    assert found == [PATCH_EMBED.name, PATCH_EMBED.name, a_recording().head.subject.name]


def test_of_several_traces_as_json_one_that_cannot_be_read_has_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a_file(tmp_path)

    assert main(["show", "t.json", "gone.json", "--format", "json", "-q"]) == 3

    _, failed = json.loads(capsys.readouterr().out)
    assert (failed["target"], failed["failure"]["kind"], failed["failure"]["message"]) == (
        "gone.json",
        "TraceError",
        "cannot read 'gone.json': there is no such file; check the path",
    )
