"""Traces are kept within bounds, and the smallest that show each kind of conversion are chosen, without folders."""

from __future__ import annotations

import gzip
import json
import random
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import archive
import fixtures
from archive import Archive
from fixtures import choose, describe, without_folders
from kernel_count import count_kernels

import layoutdoctor

if TYPE_CHECKING:
    import pytest

TRACES = Path(__file__).parents[1] / "traces"
TO_LAST = "void cudnn::ops::nchwToNhwcKernel<float>(int)"
TO_FIRST = "void cudnn::ops::nhwcToNchwKernel<float>(int)"


def a_trace(*kernels: str, padding: int = 0, **arguments: str) -> bytes:
    """A gzipped trace; padding makes it larger."""
    noise = random.Random(0).randbytes(padding).hex()
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": n, "dur": 1, "args": {"stream": 7}}
        for n, name in enumerate(kernels)
    ]
    events.append({"ph": "X", "cat": "cpu_op", "name": noise, "ts": 0, "dur": 1, "args": arguments})
    return gzip.compress(json.dumps({"traceEvents": events}).encode(), mtime=0)


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_an_archive_grows_from_call_to_call(tmp_path: Path) -> None:
    path = tmp_path / "traces.tar"
    first = Archive(path)
    assert first.add("a/eager.json.gz", b"one")
    first.write()
    second = Archive(path)
    assert second.add("b/eager.json.gz", b"two")
    assert second.add("a/eager.json.gz", b"again")
    second.write()

    assert members(path) == {"a/eager.json.gz": b"again", "b/eager.json.gz": b"two"}
    assert Archive(path).names == ("a/eager.json.gz", "b/eager.json.gz")


def test_what_has_no_room_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES_OF_A_FILE", 100)
    monkeypatch.setattr(archive, "MOST_BYTES", 2500)
    kept = Archive(tmp_path / "traces.tar")

    assert [kept.add(name, bytes(size)) for name, size in (("a", 100), ("b", 101), ("c", 50), ("d", 100))] == [
        True, False, True, False,
    ]  # fmt: skip
    assert kept.left_out == 2
    assert kept.add("a", bytes(90))  # in place of the larger one


def test_one_folder_does_not_take_all_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES_OF_A_FOLDER", 3000)
    kept = Archive(tmp_path / "traces.tar")

    assert kept.add("a/one", bytes(1000))
    assert not kept.add("a/two", bytes(1000))  # with the 1024 of each header
    assert kept.add("b/two", bytes(1000))
    assert not kept.add("c/large", bytes(200), most_bytes=100)
    assert kept.names == ("a/one", "b/two")


def test_an_archive_that_lost_its_end_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "traces.tar"
    whole = Archive(path)
    for name in ("a", "b"):
        whole.add(name, bytes(5000))
    whole.write()
    path.write_bytes(path.read_bytes()[:7000])

    rest = Archive(path)
    rest.add("c", b"new")
    rest.write()

    assert list(members(path)) == ["a", "c"]


def test_the_smallest_traces_that_show_each_kind_are_chosen() -> None:
    traces = {
        "big.inference/eager.json.gz": a_trace(TO_LAST, TO_FIRST, padding=4000),
        "small.inference/eager.json.gz": a_trace(TO_LAST),
        "medium.inference/inductor.json.gz": a_trace(TO_LAST, TO_LAST, padding=500),
        "back.inference/eager.json.gz": a_trace(TO_FIRST, padding=1000),
        "small.training/eager.json.gz": a_trace(TO_LAST, padding=2000),
        "none.training/eager.json.gz": a_trace("gemm"),
    }

    assert list(choose(traces)) == [
        "small.inference/eager.json.gz",
        "back.inference/eager.json.gz",
        "small.training/eager.json.gz",
    ]


def test_paths_lose_their_folders_and_nothing_else_changes() -> None:
    trace = a_trace(
        TO_LAST,
        kernel_file="/tmp/torchinductor_somebody/ab/cab.py",
        frame="/home/some.body/my env/lib/python3.12/site-packages/torch/nn/modules/conv.py(554): forward",
        own="/home/somebody/model.py(3): forward",
        relative="torch/nn/functional.py(2): relu",
        words="void a<b / c>(int)",
    )

    cleaned = without_folders(trace)
    arguments = json.loads(gzip.decompress(cleaned))["traceEvents"][-1]["args"]

    assert arguments == {
        "kernel_file": "cab.py",
        "frame": "torch/nn/modules/conv.py(554): forward",
        "own": "model.py(3): forward",
        "relative": "torch/nn/functional.py(2): relu",
        "words": "void a<b / c>(int)",
    }
    assert count_kernels(cleaned).groups() == count_kernels(trace).groups()
    assert cleaned == without_folders(trace)


def test_a_recorded_trace_is_read_alike_without_its_folders(tmp_path: Path) -> None:
    recorded = TRACES / "h100_vit_patch_embed.json.gz"
    cleaned = tmp_path / recorded.name
    cleaned.write_bytes(without_folders(recorded.read_bytes()))

    before, after = (layoutdoctor.examine_trace(file).trials[0].kernels for file in (recorded, cleaned))

    assert before is not None
    assert after is not None
    assert after.conversion_count == before.conversion_count == 3


def test_the_line_for_the_readme_says_how_it_was_recorded() -> None:
    line = describe(
        "unet.training/eager.json.gz",
        count_kernels(a_trace(TO_LAST, TO_LAST, "gemm")),
        {"device": "a GPU", "torch": "2.11", "cuda": "13.0", "cudnn": 91002, "driver": "580", "date": "2026-01-02"},
    )

    assert line == (
        "unet, training, eager: 3 kernels, of these 2 nchwToNhwcKernel; `diagnoses.py OUT --only unet/training` "
        "on a GPU, torch 2.11, cuda 13.0, cudnn 91002, driver 580, date 2026-01-02"
    )


def test_fixtures_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "diagnoses.json").write_text('{"environment": {"torch": "2.11"}}', encoding="utf-8")
    kept = Archive(tmp_path / "traces.tar")
    kept.add("case-01.inference/eager.json.gz", a_trace(TO_LAST))
    kept.add("case-01.inference/diagnosis.json.gz", gzip.compress(b"{}"))
    kept.write()
    target = tmp_path / "fixtures"
    monkeypatch.setattr("sys.argv", ["fixtures.py", str(tmp_path), str(target), "--prefix", "h100"])

    assert fixtures.main() == 0
    file = target / "h100_case_01_inference_eager.json.gz"
    assert [one.name for one in target.iterdir()] == [file.name]
    file.write_bytes(b"edited")
    assert fixtures.main() == 0

    assert file.read_bytes() == b"edited"
    assert capsys.readouterr().out.count("`h100_case_01_inference_eager.json.gz`: case-01, inference, eager") == 2
