"""Which files a scan is of: nothing twice, nothing dropped, ranks as the names say."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.fleet import sources
from layoutdoctor.fleet.examining import examine_source
from layoutdoctor.fleet.sources import find_sources, local_files, rank_reader

if TYPE_CHECKING:
    from pathlib import Path


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")


def names_and_ranks(*paths: Path | str, rank_regex: str | None = None, pattern: str | None = None) -> dict[str, Any]:
    """Of each trace, members of archives too, its name and rank."""
    rank_of = rank_reader(rank_regex)
    found = find_sources([str(path) for path in paths], pattern=pattern)
    return {name: rank_of(name, None) for source in found for name, _ in local_files(source)}


def test_folders_files_and_patterns_give_their_traces_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.json", "b/c.json.gz", "b/d.sqlite", "b/notes.txt", "b/table.csv")

    whole = ["a.json", "b/c.json.gz", "b/d.sqlite"]
    assert list(names_and_ranks(tmp_path)) == whole
    assert list(names_and_ranks(tmp_path, pattern="*.csv")) == ["table.csv"]
    named = names_and_ranks(tmp_path / "b" / "notes.txt", tmp_path, tmp_path / "a.json")
    assert list(named) == [*whole, "b/notes.txt"]  # a file that is named is taken, whatever it is called
    found = find_sources([str(tmp_path / "*/*.gz"), str(tmp_path / "*.gz")])
    assert {source.name: source.failure for source in found} == {
        "c.json.gz": None,
        str(tmp_path / "*.gz"): "no file has such a name; check the path",
    }


def test_members_of_archives_are_traces_of_their_own(tmp_path: Path) -> None:
    touch(tmp_path / "in", "r0/trace.json", "r1/trace.json", "readme.txt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in sorted((tmp_path / "in").rglob("*.*")):
            archive.write(path, str(path.relative_to(tmp_path / "in")))
        archive.writestr("../../evil.json", "{}")
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "in")

    assert names_and_ranks(tmp_path / "a.zip", tmp_path / "b.tar.gz") == {
        "a.zip!../../evil.json": None,
        "a.zip!r0/trace.json": 0,
        "a.zip!r1/trace.json": 1,
        "b.tar.gz!in/r0/trace.json": 0,
        "b.tar.gz!in/r1/trace.json": 1,
    }
    paths = []
    for source in find_sources([str(tmp_path / "a.zip"), str(tmp_path / "b.tar.gz")]):
        for _, path_of in local_files(source):
            paths.append(path_of())
            assert paths[-1].read_bytes() == b"{}"
            assert paths[-1].parent.name.startswith("layoutdoctor-")
    assert not [path for path in paths if path.exists()]
    (source,) = find_sources([str(tmp_path / "a.zip")], max_bytes=1)
    assert {rows.file.failure for rows in examine_source(source)} == {
        "it cannot be read: it has more than 1 B, which is the limit"
    }


def tar_of(*names: str, mode: str = "w") -> bytearray:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]  # a mode from a table
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
    return bytearray(stream.getvalue())


def damaged(data: bytearray, place: int) -> bytearray:
    data[place] ^= 255
    return data


def test_tables_and_logs_of_an_archive_that_is_named_are_taken_if_it_holds_no_trace(tmp_path: Path) -> None:
    for name, members in (("tables", ["a.txt", "b/c.csv", "d.md"]), ("both", ["a.txt", "t.json"])):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for member in members:
                archive.writestr(member, "{}")
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as packed:
            for member in members:
                packed.addfile(tarfile.TarInfo(member), io.BytesIO())

    assert set(names_and_ranks(*tmp_path.iterdir())) == {
        *("both.tar.gz!t.json", "both.zip!t.json"),
        *("tables.tar.gz!a.txt", "tables.tar.gz!b/c.csv", "tables.zip!a.txt", "tables.zip!b/c.csv"),
    }
    assert set(names_and_ranks(tmp_path)) == {"both.tar.gz!t.json", "both.zip!t.json"}  # not named: left out
    assert not set(names_and_ranks(tmp_path / "tables.zip", pattern="*.json"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tbz2", tar_of("a.json", "b.json", mode="w:bz2"), {"a.tbz2!a.json": None, "a.tbz2!b.json": None}),
        ("a.txz", tar_of("notes.md", mode="w:xz"), {"a.txz": "found no file that matches *.json"}),
        ("a.tar", tar_of("a.tar.gz", "b/c.zip"), {
            "a.tar!a.tar.gz": "it cannot be read: it is an archive within an archive; unpack the outer one",
            "a.tar!b/c.zip": "it cannot be read: it is an archive within an archive; unpack the outer one",
        }),
        ("a.tar", damaged(tar_of("a.json", "b.json", "c.json"), 1030), {
            "a.tar!a.json": None,
            "a.tar": "the archive cannot be read: the part after its first 1.00 KiB is damaged",
        }),
        ("a.tar.gz", damaged(tar_of("a.json", mode="w:gz"), -6), {
            "a.tar.gz!a.json": None,
            "a.tar.gz": "the archive cannot be read: CRC check failed",
        }),
    ],
)  # fmt: skip
def test_no_member_of_an_archive_is_dropped_silently(
    tmp_path: Path, name: str, content: bytearray, expected: dict[str, str | None]
) -> None:
    (tmp_path / name).write_bytes(content)

    (source,) = find_sources([str(tmp_path / name)])
    failures = {rows.file.name: str(rows.file.failure) for rows in examine_source(source)}

    assert set(failures) == set(expected)
    for member, why in expected.items():
        assert failures[member].startswith(why or "cannot read "), failures  # an empty object is no trace


@pytest.mark.timeout(20)
def test_a_pipe_that_is_called_as_an_archive_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.zip")

    (source,) = find_sources([str(tmp_path)])

    assert [rows.file.failure for rows in examine_source(source)] == [
        "the archive cannot be read: it is a pipe or a device"
    ]


def test_a_name_that_is_no_utf_8_is_shown_with_its_bytes_escaped(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.json")).write_bytes(b"no trace")

    (source,) = find_sources([str(tmp_path)])
    (rows,) = examine_source(source)

    assert rows.file.name == "a\\udcff.json"
    assert "it seems to be text of another kind" in str(rows.file.failure)
    assert to_json(rows)


def test_no_name_begins_with_the_home_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "alice/w/a.json", "bob/b.json")
    monkeypatch.setattr(sources, "FOLDER_OF_HOMES", re.compile(re.escape(str(tmp_path))))

    names = [source.name for source in find_sources([str(tmp_path / "alice/w/a.json"), str(tmp_path / "bob/b.json")])]

    assert names == [f"{tmp_path}/alice/w/a.json", f"{tmp_path}/bob/b.json"]  # absolute ones are made short later
    assert [source.name for source in find_sources([str(tmp_path / "bob/b.json")])] == ["b.json"]


RANKS = {
    "trace_rank3.json": 3, "rank-12.json.gz": 12, "Rank_0_step4.json": 0, "r7.json": 7, "r3/trace.json": 3,
    "run/5/trace.json": 5, "node1_rank2/trace.json": 2, "node1/rank2/worker/trace.json": 2, "rank4/rank9.json": 9,
    "resnet_r50.json": None, "frank3.json": None, "v100_resnet50/trace.json": None,
}  # fmt: skip


def test_names_and_folders_say_ranks(tmp_path: Path) -> None:
    touch(tmp_path, *RANKS)

    assert names_and_ranks(tmp_path) == dict(sorted(RANKS.items()))


def test_the_users_own_pattern_of_ranks_counts_alone(tmp_path: Path) -> None:
    touch(tmp_path, "host1/gpu2_rank9.json", "rank3/other.json")

    assert names_and_ranks(tmp_path, rank_regex=r"gpu(\d+)") == {"host1/gpu2_rank9.json": 2, "rank3/other.json": None}
    for pattern, message in (
        ("(", r"cannot read the regular expression of the rank, '\('"),
        ("rank", "expected a group around the rank"),
    ):
        with pytest.raises(UsageError, match=message):
            rank_reader(pattern)


def test_nothing_at_all_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "notes.md")

    with pytest.raises(UsageError, match=r"found no file that matches \*\.json or"):
        find_sources([str(tmp_path)])
    touch(tmp_path, "table.txt", "run.log")
    assert [source.name for source in find_sources([str(tmp_path)])] == ["run.log", "table.txt"]
    touch(tmp_path, "trace.json")
    assert [source.name for source in find_sources([str(tmp_path)])] == ["trace.json"]


def test_a_folder_without_traces_among_others_is_a_row_in_any_order(tmp_path: Path) -> None:
    touch(tmp_path, "full/trace.json", "empty/notes.md")
    paths = [str(tmp_path / "full"), str(tmp_path / "empty")]

    for order in (paths, paths[::-1]):
        failed, examined = sorted(find_sources(order), key=lambda source: source.failure is None)
        assert str(failed.failure).startswith("found no file that matches *.json")
        assert (failed.path, examined.path, examined.failure) == (paths[1], f"{paths[0]}/trace.json", None)


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
    files = fsspec.filesystem("memory")
    for name in ("/runs/rank0.json", "/runs/deep/rank1.json", "/runs/notes.txt"):
        files.pipe(name, b"{}")
    try:
        assert names_and_ranks("memory://runs") == {"rank0.json": 0, "deep/rank1.json": 1}
        assert list(names_and_ranks("memory://runs/*.json")) == ["rank0.json"]
        for source in find_sources(["memory://runs"]):
            assert [path_of().read_bytes() for _, path_of in local_files(source)] == [b"{}"]
    finally:
        files.rm("/runs", recursive=True)


@pytest.mark.parametrize(
    ("url", "failure"),
    [
        ("s3://bucket/a.json", "it cannot be listed: Install s3fs to access S3"),
        ("nothing://a.json", "it cannot be listed: Protocol not known: nothing"),
        ("zip://a::file:///nowhere.zip", "it cannot be listed: No such file or directory"),
    ],
)
def test_a_url_that_cannot_be_opened_is_a_row(tmp_path: Path, url: str, failure: str) -> None:
    touch(tmp_path, "a.json")

    found = find_sources([str(tmp_path / "a.json"), url])

    assert [source.failure for source in found if source.failure] == [failure]
    assert len(found) == 2
