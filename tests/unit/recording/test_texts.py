"""What people paste into an issue: tables of profilers and logs of oneDNN, as they are and as they arrive."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import layoutdoctor
from layoutdoctor.errors import TraceError, UsageError
from layoutdoctor.fleet.scanning import scan
from layoutdoctor.recording.reading import read_tables, read_trace
from layoutdoctor.recording.recording import KernelTotals
from layoutdoctor.recording.table import FURTHER
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import recorded_run
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = Path(__file__).parent.parent.parent / "texts"
OF_FIVE_SECONDS = "Layout conversions take at least 2.00 ms of 5.00 ms kernel time (40 %)"
OF_KEY_AVERAGES = (
    "Layout conversions take at least 1.42 ms of 3.52 ms kernel time (40 %); 12 kernels may convert a layout: "
    "150 us more"
)
OF_SIX_ROWS = "Layout conversions take at least 29.9 ms of 221 ms kernel time (13 %)"
OF_TRANSPOSES = (
    "No layout conversion can be shown in 4 kernels, 58.1 ms kernel time; 4 kernels may convert a layout: 53.5 ms"
)
MAY = "calls may convert a layout"
NO_OPERATION_OF_3 = "No layout conversion can be shown in 3 operations"
CREATED = "Creating primitives took 70.6 s, running them 211 ms. Layout conversions take at least 220 us of 211 ms"


@pytest.mark.parametrize(
    ("name", "device", "claim"),
    [
        ("key_averages.txt", "cuda", OF_KEY_AVERAGES),
        ("key_averages_with_stack.txt", "cuda", OF_KEY_AVERAGES),
        ("key_averages_in_markdown.txt", "cuda", OF_KEY_AVERAGES),
        # A range that the host has as well took 2.40 ms on the device, and is no kernel.
        (
            "key_averages_of_five_rows.txt",
            "cuda",
            "Layout conversions take at least 1.13 ms of 3.61 ms kernel time (31 %)",
        ),
        (
            "key_averages_by_time_on_the_host.txt",
            "cuda",
            "No layout conversion can be shown in 1 operation, 2.65 ms own time",
        ),
        (
            "key_averages_of_a_cpu.txt",
            "cpu",
            f"Layout conversions take at least 87.4 us of 1.50 ms own time (5.8 %); 6 {MAY}: 141 us more",
        ),
        ("profiler_table.txt", "cuda", "Layout conversions take at least 107 ms of 869 ms kernel time (12 %)"),
        ("autograd_profiler_1_7.txt", "cuda", f"{NO_OPERATION_OF_3}, 1.00 ms own time; 10 {MAY}: 50.0 us"),
        ("autograd_profiler_1_4.txt", "cuda", f"No layout conversion can be shown in 4 operations; 10 {MAY}: 50.0 us"),
        ("autograd_profiler_0_4.txt", "cuda", f"{NO_OPERATION_OF_3}; 10 {MAY}: 50.0 us"),
        # The percentages show the whole of a table that was cut.
        ("key_averages_cut_to_six_rows.txt", "cuda", OF_SIX_ROWS),
        ("key_averages_cut_without_total.txt", "cuda", OF_SIX_ROWS),
        ("key_averages_cut_on_a_cpu.txt", "cpu", "No layout conversion can be shown in 7 operations, 1.99 s own time"),
        (
            "key_averages_of_operations_alone.txt",
            "cuda",
            "No layout conversion can be shown in 4 operations, 238 ms own time; 10 calls may convert a layout: 193 ms",
        ),
        ("nsys_2021.txt", "cuda", OF_TRANSPOSES),
        ("nsys_2021_with_spaces_in_numbers.txt", "cuda", OF_TRANSPOSES),
        (
            "nsys_2021_in_german.txt",
            "cuda",
            "Layout conversions take at least 20.0 ms of 50.0 ms kernel time (40 %)",
        ),
        *((f"nsys_{name}.txt", "cuda", OF_FIVE_SECONDS) for name in ("2019", "2024", "table", "blocks")),
        ("onednn_cache_miss.log", "cpu", f"{CREATED} kernel time (0.1 %)"),
        ("onednn_ipex_train.log", "cpu", "Layout conversions take at least 4.88 us of 2.15 ms kernel time (0.2 %)"),
        ("mkldnn_2018.log", "cpu", "Layout conversions take at least 6.48 ms of 77.9 ms kernel time (8.3 %)"),
    ],
)
def test_each_text_is_read(name: str, device: str, claim: str) -> None:
    diagnosis = layoutdoctor.examine_trace(TEXTS / name)

    assert (diagnosis.subject.device, build_view(diagnosis).answer.claim) == (device, claim)
    assert diagnosis.subject.notes == ()


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        (
            "profiler_table.txt",
            [
                "the kernels that the table lists take 206 ms of its total of 869 ms; the rest is not listed "
                "(row_limit=-1 lists all)",
                "3 names are cut short, so kernels are known by their beginning only (max_name_column_width=None "
                "prints them whole)",
            ],
        ),
        (
            "key_averages_of_a_cpu.txt",
            [
                "what oneDNN converts within its operations is in its own log (ONEDNN_VERBOSE=1), not in a table",
                "the operations that the table lists take 1.50 ms of its total of 7.53 ms; the rest is ranges and "
                "Python code, or not listed (row_limit=-1 lists all)",
            ],
        ),
        (
            "autograd_profiler_1_4.txt",
            [
                "the table lists no kernels, so it does not show what libraries convert: from torch 1.8.1 on, "
                'sort_by="self_cuda_time_total" puts kernels first',
                "times of operations include the operations that they called, so they cannot be added up",
            ],
        ),
    ],
)
def test_the_report_has_what_a_table_cannot_show(name: str, lacks: list[str]) -> None:
    (trial,) = layoutdoctor.examine_trace(TEXTS / name).trials

    assert [lack.reason for lack in trial.kernel_summary.lacks if lack.part != "order"] == lacks


def test_a_log_with_a_backward_is_of_a_training_step_and_gets_its_advice() -> None:
    diagnosis = layoutdoctor.examine_trace(TEXTS / "onednn_ipex_train.log")
    notes = dict(build_view(diagnosis).answer.notes)

    assert (diagnosis.findings, notes["Next"].split(" finds")[0]) == (
        (),
        "python -m layoutdoctor model.py --mode training",
    )
    notes = dict(build_view(layoutdoctor.examine_trace(TEXTS / "onednn_cache_miss.log")).answer.notes)
    problem = "deconvolution mb1_ic1026oc1_ih1oh1kh1sh1dh0ph0_iw224ow58112kw1024sw256dw0pw0"
    assert notes["Created"] == f"2 primitives in 70.6 s; longest 70.6 s: {problem}"
    assert "use few input sizes" in notes["Reuse"]
    notes = dict(build_view(layoutdoctor.examine_trace(TEXTS / "mkldnn_2018.log")).answer.notes)
    assert notes["Undone"].startswith("not looked for, because a log of oneDNN does not show what PyTorch ran between")
    assert notes["Conv time"] == "2 kernels, 71.4 ms"  # the only reorder is beside a convolution of other sizes


def test_primitives_that_are_created_again_are_said_to_be(tmp_path: Path) -> None:
    *head, missed, _, ran, _ = (TEXTS / "onednn_cache_miss.log").read_text(encoding="utf-8").splitlines()
    hit = missed.replace("cache_miss", "cache_hit").replace("70550.8", "0.25")
    for lines, claim, created in (
        ([missed, missed, hit, ran], "Creating primitives took 141 s, running them 220 us. L", "2 primitives (1 dif"),
        ([hit, ran], "Creating primitives took 250 us, running them 220 us. L", "0 primitives in 250 us; 1 found in t"),
        (
            [missed],
            "Creating primitives took 70.6 s. Nothing can be said of conversions: the lo",
            "1 primitive in 70.6",
        ),
    ):
        (tmp_path / "run.log").write_text("\n".join((*head, *lines)), encoding="utf-8")
        answer = build_view(layoutdoctor.examine_trace(tmp_path / "run.log")).answer
        assert (answer.claim[: len(claim)], dict(answer.notes)["Created"][: len(created)]) == (claim, created)


def test_a_log_of_torch_trace_whose_graph_has_no_buffer_is_called_one() -> None:
    diagnosis = layoutdoctor.examine_trace(TEXTS / "torch_trace_of_one_graph.log")

    run = recorded_run(diagnosis)
    assert run is not None
    assert (run.kind, run.sources) == ("compiles", ("torch_trace_log",))
    assert build_view(diagnosis).answer.claim == "Nothing can be said: no buffer of 1 graph could be read"
    with pytest.raises(UsageError, match=r"'torch_trace_of_one_graph\.log', a TORCH_TRACE log, with"):
        layoutdoctor.compare(diagnosis, layoutdoctor.examine_trace(TEXTS / "nsys_2021.txt"))


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if not re.match(r"[\s-]+$", line))


def as_markdown(line: str) -> str:
    """A row as it is copied from a page that set the table, without the outer strokes."""
    cells = re.split(r"\s{2,}", line.strip())
    if len(cells) < 4:
        return "" if set(line) <= set("- ") else line
    return " | ".join("--" if set(cell) == {"-"} else cell for cell in cells)


WAYS: dict[str, Callable[[str], str]] = {
    "quoted": lambda text: "On Monday somebody wrote:\n" + "".join(f"> {line}\n" for line in text.splitlines()),
    "fenced": lambda text: f"My profile, sorted by name, is:\n```text\n{text}```\nWhy?\n",
    "logged": lambda text: "".join(
        f"2024-05-01 12:00:00,{i:03} INFO x.py: {s}\n" for i, s in enumerate(text.split("\n"))
    ),
    "squeezed": squeezed,
    "apart": lambda text: text.replace("\n", "\n\n") if "Self" in text else text,
    "twice": lambda text: f"{text}\n\n{text}",
    "in colors": lambda text: "".join(
        f"\x1b[1;32m{line}\x1b[0m\n" if line.strip() else "\n" for line in text.splitlines()
    ),
    "between prints": lambda text: re.sub(
        r"^(.*(?:nchwToNhwc|xmma).*\n)",
        "\\1Epoch 3: loss 0.1234, 27 it/s\n 34%|###4    | 17/50 [00:03<00:06]\n",
        text,
        flags=re.M,
    ),
    "as a page shows it": lambda text: "".join(f"{as_markdown(line)}\n" for line in text.splitlines()),
}


@pytest.mark.parametrize("name", ["key_averages.txt", "profiler_table.txt", "nsys_2019.txt", "nsys_2024.txt"])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_table_is_the_same_however_it_was_pasted(tmp_path: Path, name: str, way: str) -> None:
    plain = read_trace(TEXTS / name)
    (tmp_path / name).write_bytes(WAYS[way]((TEXTS / name).read_text(encoding="utf-8")).encode())

    found = read_trace(tmp_path / name)

    assert isinstance(plain, KernelTotals)
    assert isinstance(found, KernelTotals)
    assert (found.rows, found.nanoseconds, found.device) == (plain.rows, plain.nanoseconds, plain.device)
    assert {problem.what for problem in found.problems} <= {FURTHER}
    assert len(plain.rows) > 1


@pytest.mark.parametrize("device", ["XPU", "MTIA", "HPU", "DEVICE", "None"])
def test_the_device_of_a_table_is_that_of_its_titles(tmp_path: Path, device: str) -> None:
    text = (TEXTS / "key_averages.txt").read_text(encoding="utf-8")
    (tmp_path / "t.txt").write_text(re.sub(r" {0,6}\bCUDA\b", f" {device}", text), encoding="utf-8")

    found = read_trace(tmp_path / "t.txt")

    assert isinstance(found, KernelTotals)
    assert (found.device, found.nanoseconds) == (
        {"DEVICE": "cuda", "None": "cuda"}.get(device, device.lower()),
        3_522_000,
    )


def test_operations_whose_kernels_are_not_listed_ran_on_the_device_all_the_same(tmp_path: Path) -> None:
    """A table of pytorch#72770: the convolution's own time on the device is 0, that of its kernels is not."""
    path = tmp_path / "table.txt"
    titles = "Name  Self CPU %  Self CPU  CPU total %  CPU total  CPU time avg  Self CUDA  Self CUDA %  CUDA total"
    row = "quantized::conv2d_cudnn  3.88%  867.000us  10.90%  2.436ms  121.800us  0.000us  0.00%  6.111ms"
    path.write_text(f"{titles}  CUDA time avg  # of Calls\n{row}  305.550us  20\n", encoding="utf-8")

    diagnosis = layoutdoctor.examine_trace(path)

    assert diagnosis.subject.device == "cuda"
    assert build_view(diagnosis).answer.claim == "Nothing can be said: the table holds no kernels"


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [
        ("key_averages_cut_to_six_rows.txt", None),  # its convolutions are not listed, only their conversions
        ("key_averages_cut_without_total.txt", None),
        ("key_averages_cut_on_a_cpu.txt", "520 convolutions, 1.87 s"),  # aten::conv2d, with all that it called
        ("key_averages_of_operations_alone.txt", "10 convolutions, 431 ms"),  # of one call, four rows
        ("key_averages_of_a_cpu.txt", "3 convolutions, 1.10 ms, 7.9 % of that time in layout conversions"),
    ],
)
def test_the_time_of_convolutions_is_that_of_the_outermost_rows_if_inner_ones_are_cut(
    name: str, convolutions: str | None
) -> None:
    notes = dict(build_view(layoutdoctor.examine_trace(TEXTS / name)).answer.notes)

    assert notes.get("Conv time") == convolutions


def test_tables_of_different_runs_are_reported_each_by_its_heading(tmp_path: Path) -> None:
    text = (TEXTS / "nsys_table.txt").read_text(encoding="utf-8")
    half = text.replace("2,000,000", "1,000,000").replace("60.0", "75.0").replace("40.0", "25.0")
    same = (TEXTS / "nsys_2019.txt").read_text(encoding="utf-8")
    path = tmp_path / "t.txt"
    path.write_text(f"fp32:\n\n{text}\n## fp16\n{half}\nthe first one again\n\n{same}", encoding="utf-8")

    recordings = read_tables(path, "t.txt")

    names = ["t.txt, table 1 (fp32)", "t.txt, table 2 (fp16)"]
    assert [recording.head.subject.name for recording in recordings] == names
    assert [build_view(diagnose_recordings([one])).answer.claim for one in recordings] == [
        OF_FIVE_SECONDS,
        "Layout conversions take at least 1.00 ms of 4.00 ms kernel time (25 %)",
    ]
    assert layoutdoctor.examine_trace(path).subject.notes == (f"{FURTHER} (2)",)
    scanned = [(file.name, file.conversion_nanoseconds) for file in scan(path).files]
    assert scanned == list(zip(names, (2_000_000, 1_000_000), strict=True))


def test_a_table_of_two_is_the_one_with_kernels(tmp_path: Path) -> None:
    texts = [
        (TEXTS / name).read_text(encoding="utf-8")
        for name in ("key_averages_by_time_on_the_host.txt", "key_averages.txt")
    ]
    (tmp_path / "t.txt").write_text("\nby time on the device:\n\n".join(texts), encoding="utf-8")

    diagnosis = layoutdoctor.examine_trace(tmp_path / "t.txt")

    assert build_view(diagnosis).answer.claim == OF_KEY_AVERAGES
    assert diagnosis.subject.notes == ("further tables of kernels in the same file, which were not read",)


def test_a_range_of_lightning_is_no_kernel_and_cut_names_may_be_copies_up_to_what_both_took(tmp_path: Path) -> None:
    text = (TEXTS / "key_averages.txt").read_text(encoding="utf-8")
    annotated = next(line for line in text.splitlines() if "ProfilerStep*" in line and "2.700ms" in line)
    name = "[pl][module]torch.nn.modules.conv.Conv2d: conv1"
    for before, after, spent in (
        (annotated, annotated.replace(f"{'ProfilerStep*':>55}", f"{name:>55}"), 150e-6),
        ("aten::copy_ ", "aten::fill_ ", 0),
        ("150.000us         4.15%     150.000us", "100.000us         4.15%     100.000us", 100e-6),
    ):
        (tmp_path / "t.txt").write_text(text.replace(before, after, 1), encoding="utf-8")
        (trial,) = layoutdoctor.examine_trace(tmp_path / "t.txt").trials
        assert trial.kernel_summary.undecided_seconds == pytest.approx(spent)
        assert "[pl]" not in " ".join(total.name for total in trial.kernel_summary.totals)


def test_a_cut_or_damaged_table_costs_no_more_than_its_rows(tmp_path: Path) -> None:
    lines = (TEXTS / "key_averages.txt").read_text(encoding="utf-8").splitlines()
    lines[12] = lines[12].replace("1.134ms", "1.1x4ms")
    (tmp_path / "t.txt").write_text("\n".join(lines[:15]), encoding="utf-8")

    diagnosis = layoutdoctor.examine_trace(tmp_path / "t.txt")

    assert diagnosis.subject.notes == ("rows of the kernel table that could not be read",)
    assert build_view(diagnosis).answer.claim.startswith("Layout conversions take at least 288 us of ")


EXPORT = """#!/bin/sh
test "$1 $2 $3" = "export --type sqlite" || exit 9
cat "$SAMPLE" > "$7"
"""


def test_a_report_of_nsight_systems_is_exported_where_nsys_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"\x00\x83\x01\x02" * 40)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceError, match=r"was not exported; export it with nsys export --type sqlite$"):
        read_trace(report)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = tmp_path / "nsys"
    for script, why in (
        ("#!/bin/sh\necho 'cannot open' >&2\nexit 3\n", "exit status 3: cannot open"),
        ("#!/no/such/shell\n", "No such file or directory"),
    ):
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        with pytest.raises(TraceError, match=f"nsys export made no database .*{why}"):
            read_trace(report)
    program.write_text(EXPORT, encoding="utf-8")
    database = tmp_path / "sample"
    a_database(database)
    monkeypatch.setenv("SAMPLE", str(database))

    assert read_trace(report).source == "nsys_export"  # type: ignore[union-attr]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nsys", "run.nsys-rep", "sample"]


def a_database(path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER)"
        )
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 5, 1)")
        connection.execute("INSERT INTO StringIds VALUES (1, 'f')")


@pytest.mark.parametrize(("axes", "wanted"), [("hw", "torch.channels_last)"), ("dhw", "torch.channels_last_3d)")])
def test_the_groups_of_a_weight_are_no_dimension_of_the_images(tmp_path: Path, axes: str, wanted: str) -> None:
    """A grouped weight has one dimension more than the images: the format that is advised is that of the images."""
    letters = "abcdef"[: 3 + len(axes)]
    sizes = "".join(f"_i{axis}12o{axis}12k{axis}3s{axis}1d{axis}0p{axis}1" for axis in axes)
    weight = f"src_f32::blocked:{letters}:f0 dst_f32::blocked:{letters[0].upper()}{letters[1:]}8a:f0"
    images = letters[:-1]
    log = [
        "onednn_verbose,info,oneDNN v3.5.0 (commit 0)",
        f"onednn_verbose,exec,cpu,reorder,jit:blk,undef,{weight},,,8x2x2{'x3' * len(axes)},0.25",
        f"onednn_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:{images}:f0 "
        f"wei_f32::blocked:{letters[0].upper()}{letters[1:]}8a:f0 dst_f32::blocked:{images}:f0,,"
        f"alg:convolution_direct,mb2_g8ic16oc16{sizes},1.5",
    ]
    (tmp_path / "run.log").write_text("\n".join(log) + "\n", encoding="utf-8")
    diagnosis = layoutdoctor.examine_trace(tmp_path / "run.log")
    suggestions = [finding.suggestion or "" for finding in diagnosis.findings if finding.code == "LD111"]
    assert suggestions
    assert all(wanted in one for one in suggestions), suggestions
