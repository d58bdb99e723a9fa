"""Zip archives of somebody else's: a directory that could mislead a reader is refused before anything is read."""

from __future__ import annotations

import io
import stat
import struct
import warnings
import zipfile

import pytest
from loops import for_each

from layoutdoctor import archives
from layoutdoctor.archives import Archive, DamagedFileError, ForbiddenPartError, open_archive


def made_of(*parts: tuple[str | zipfile.ZipInfo, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", kind) as archive:
        warnings.simplefilter("ignore", UserWarning)
        for name, data in parts:
            archive.writestr(name, data)
    return stream.getvalue()


def opened(data: bytes) -> Archive:
    return open_archive(io.BytesIO(data), len(data))


def changed(data: bytes, offset: int, new: bytes) -> bytes:
    """With other bytes in the first entry of the directory."""
    place = data.index(b"PK\x01\x02") + offset
    return data[:place] + new + data[place + len(new) :]


def link(name: str) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name)
    found.external_attr = (stat.S_IFLNK | 0o777) << 16
    return found


def test_parts_are_named_without_the_folder_they_share() -> None:
    archive = opened(made_of(("a/x", b"12"), ("a/b/y", b"")))

    assert archive.names == ("x", "b/y")
    assert archive.size("x") == 2
    assert archive.read("x", 2) == b"12"
    archive.check_sums()


@pytest.mark.parametrize("names", [("x", "a/y"), ("a/x", "b/y"), ("x",)])
def test_parts_without_a_folder_in_common_keep_their_names(names: tuple[str, ...]) -> None:
    assert opened(made_of(*((name, b"") for name in names))).names == names


def test_a_packed_part_is_unpacked() -> None:
    assert opened(made_of(("x", b"ab" * 50), kind=zipfile.ZIP_DEFLATED)).read("x", 100) == b"ab" * 50


def test_a_part_that_is_too_long_is_not_read() -> None:
    with pytest.raises(DamagedFileError, match="its part 'x' has 3 bytes, more than the 2 allowed"):
        opened(made_of(("x", b"123"))).read("x", 2)


@for_each("name", ["../x", "a/../x", "/x", "a//x", "./x", "a/", "a\\x", "C:/x", "a\0b", "a\nb", "a\x1b[31m", ""])
def test_a_name_that_is_no_plain_path_is_forbidden(name: str) -> None:
    # zipfile does not write all of them as they are: the name is put in afterwards, in both places.
    stand_in = "q" * max(1, len(name.encode()))
    data = made_of((stand_in, b"")).replace(stand_in.encode(), name.encode() or b"/")

    with pytest.raises(ForbiddenPartError, match="is no plain path in the archive"):
        opened(data)


@pytest.mark.parametrize("second", ["a/x", "a/X", "A/x"])
def test_a_name_that_stands_twice_is_forbidden(second: str) -> None:
    with pytest.raises(ForbiddenPartError, match="two parts named"):
        opened(made_of(("a/x", b""), (second, b"")))


def test_a_link_is_forbidden() -> None:
    with pytest.raises(ForbiddenPartError, match="is a link or a device"):
        opened(made_of((link("x"), b"/etc/passwd")))


def test_parts_that_share_bytes_are_forbidden() -> None:
    data = made_of(("x", b"1"), ("y", b"2"))
    second = data.rindex(b"PK\x01\x02")
    data = data[: second + 42] + struct.pack("<I", 0) + data[second + 46 :]

    with pytest.raises(ForbiddenPartError, match="shares its bytes"):
        opened(data)


def test_a_bomb_is_forbidden() -> None:
    with pytest.raises(ForbiddenPartError, match="would unpack to 104857600"):
        opened(made_of(("x", bytes(100 << 20)), kind=zipfile.ZIP_DEFLATED))


@for_each(
    ("data", "said"),
    [
        (b"", "is cut off or damaged"),
        (b"PK\x03\x04" * 20, "is cut off or damaged"),
        (made_of(), "has 0 parts"),
        (made_of(("x", b"1")) + b"more", "something stands before or behind it"),
        (b"more" + made_of(("x", b"1")), "something stands before or behind it"),
        (made_of(("x", b"1"))[:-3], "is cut off"),
        (changed(made_of(("x", b"1")), 8, b"\x01"), "is encrypted"),
        (changed(made_of(("x", b"1")), 10, b"\x0c"), "packed in a way that torch does not use"),
        (changed(made_of(("x", b"1")), 24, b"\x02"), "has two lengths"),
    ],
)
def test_what_is_no_whole_archive_is_damaged(data: bytes, said: str) -> None:
    with pytest.raises(DamagedFileError, match=said):
        opened(data)


def test_too_many_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_ENTRIES", 1)

    with pytest.raises(DamagedFileError, match="has 2 parts"):
        opened(made_of(("x", b""), ("y", b"")))


def test_a_wrong_check_sum_is_damage() -> None:
    data = made_of(("x", b"12345678"))
    archive = opened(data.replace(b"12345678", b"12345679"))

    with pytest.raises(DamagedFileError, match="its part 'x' is damaged"):
        archive.check_sums()
    with pytest.raises(DamagedFileError, match="its part 'x' is damaged"):
        archive.read("x", 8)
