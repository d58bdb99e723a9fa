"""Which files a scan is of: nothing twice, nothing dropped, ranks as the names say."""

from __future__ import annotations

import os
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from loops import for_each

from layoutdoctor.errors import TraceError, UsageError
from layoutdoctor.fleet.sources import find_sources, local_file

if TYPE_CHECKING:
    from pathlib import Path


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")


def names_and_ranks(*paths: Path | str, **options: str) -> dict[str, int | None]:
    found = find_sources([str(path) for path in paths], **options)
    return {source.name: source.rank if source.rank is not None else source.folder_rank for source in found}


def test_a_folder_gives_its_traces_and_those_of_its_folders(tmp_path: Path) -> None:
    touch(tmp_path, "a.json", "b/c.json.gz", "b/d.sqlite", "b/notes.txt", "b/table.csv")

    assert list(names_and_ranks(tmp_path)) == ["a.json", "b/c.json.gz", "b/d.sqlite"]
    assert list(names_and_ranks(tmp_path, pattern="*.csv")) == ["table.csv"]


def test_what_is_named_is_taken_whatever_it_is_called_and_once(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt", "a.json")

    assert list(names_and_ranks(tmp_path / "notes.txt", tmp_path, tmp_path / "a.json")) == ["a.json", "notes.txt"]


def test_a_pattern_and_one_that_matches_nothing(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.json", "y/b.json", "y/c.txt")
    nothing = str(tmp_path / "*.gz")

    found = find_sources([str(tmp_path / "*/*.json"), nothing])

    assert [source.name for source in found if source.failure is None] == ["x/a.json", "y/b.json"]
    assert [source.failure for source in found if source.failure] == ["no file has such a name; check the path"]


def test_members_of_archives_are_sources_of_their_own(tmp_path: Path) -> None:
    touch(tmp_path / "in", "r0/trace.json", "r1/trace.json", "readme.txt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in sorted((tmp_path / "in").rglob("*.*")):
            archive.write(path, str(path.relative_to(tmp_path / "in")))
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "in")

    assert names_and_ranks(tmp_path / "a.zip", tmp_path / "b.tar.gz") == {
        "a.zip!r0/trace.json": 0,
        "a.zip!r1/trace.json": 1,
        "b.tar.gz!in/r0/trace.json": 0,
        "b.tar.gz!in/r1/trace.json": 1,
    }
    for source in find_sources([str(tmp_path / "a.zip"), str(tmp_path / "b.tar.gz")]):
        with local_file(source, 100) as path:
            assert path.read_bytes() == b"{}"
        assert not path.exists()
        with pytest.raises(TraceError, match="more than 1 bytes"), local_file(source, 1):
            pass


def test_a_member_that_points_out_of_its_archive_is_written_nowhere_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../evil.json", "{}")

    (source,) = find_sources([str(tmp_path / "a.zip")])
    with local_file(source, 100) as path:
        assert path.name == "evil.json"
        assert path.parent.name.startswith("layoutdoctor-scan-")


@for_each("name", ["a.zip", "a.tar.gz", "a.tgz", "a.tar"])
def test_a_broken_archive_is_a_source_with_its_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no archive")

    (source,) = find_sources([str(tmp_path / name)])

    assert source.failure is not None
    assert source.failure.startswith("the archive cannot be read: ")


@for_each(
    ("name", "rank"),
    [
        ("trace_rank3.json", 3),
        ("rank-12.json.gz", 12),
        ("Rank_0_step4.json", 0),
        ("r7.json", 7),
        ("r3/trace.json", 3),
        ("run/5/trace.json", 5),
        ("node1_rank2/trace.json", 2),
        ("node1/rank2/worker/trace.json", 2),
        ("rank4/rank9.json", 9),
        ("resnet_r50.json", None),
        ("frank3.json", None),
        ("v100_resnet50/trace.json", None),
    ],
)
def test_ranks_stand_in_names_and_folders(tmp_path: Path, name: str, rank: int | None) -> None:
    touch(tmp_path / "all", name, "zzz.json")
    ((_, found),) = [entry for entry in names_and_ranks(tmp_path / "all").items() if entry[0] == name]

    assert found == rank


def test_the_users_own_pattern_of_ranks_counts_alone(tmp_path: Path) -> None:
    touch(tmp_path, "host1/gpu2_rank9.json", "rank3/other.json")

    assert names_and_ranks(tmp_path, rank_regex=r"gpu(\d+)") == {"host1/gpu2_rank9.json": 2, "rank3/other.json": None}


@for_each(
    ("pattern", "message"),
    [("(", "cannot read --rank-regex '('"), ("rank", "expected a group around the rank")],
)
def test_a_pattern_of_ranks_that_is_none_is_refused(tmp_path: Path, pattern: str, message: str) -> None:
    touch(tmp_path, "a.json")

    with pytest.raises(UsageError) as failure:
        find_sources([str(tmp_path)], rank_regex=pattern)

    assert message in str(failure.value)


def test_nothing_at_all_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")

    with pytest.raises(UsageError, match=r"there is nothing in it that is called \*\.json or"):
        find_sources([str(tmp_path)])


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/b.json", "c.json")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    assert {source.name: source.failure for source in find_sources([str(tmp_path)])} == {
        "a": "the folder cannot be listed: Permission denied",
        "c.json": None,
    }


def test_urls_are_listed_and_read_by_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    for name in ("/runs/rank0.json", "/runs/deep/rank1.json", "/runs/notes.txt"):
        files.pipe(name, b"{}")
    try:
        found = find_sources(["memory://runs"])
        assert {source.name: source.rank for source in found} == {"rank0.json": 0, "deep/rank1.json": 1}
        assert [source.name for source in find_sources(["memory://runs/*.json"])] == ["rank0.json"]
        with local_file(found[0], 100) as path:
            assert path.read_bytes() == b"{}"
    finally:
        files.rm("/runs", recursive=True)


@for_each(
    ("url", "message"),
    [
        ("s3://bucket/a.json", "cannot open 's3://bucket/a.json': Install s3fs"),
        ("nothing://a.json", "cannot open 'nothing://a.json': Protocol not known: nothing; expected a path or a URL"),
    ],
)
def test_a_url_that_needs_more_says_what(url: str, message: str) -> None:
    pytest.importorskip("fsspec")

    with pytest.raises(UsageError) as failure:
        find_sources([url])

    assert str(failure.value).startswith(message)
