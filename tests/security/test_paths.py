"""Where reports go: links, names and permissions that somebody else prepared cost nobody a file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from loops import for_each

from layoutdoctor.commands.output import prepare_outputs
from layoutdoctor.diagnosis.writing import file_name_of, replacing, write_file
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def refusal(name: str, *, force: bool = True) -> str:
    with pytest.raises(UsageError) as caught:
        prepare_outputs([name], force=force)
    message = str(caught.value)
    assert "\n" not in message
    return message


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".layoutdoctor")]


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "report.json"
    secret.write_text("keep")
    for target in (secret, tmp_path / "nothing", link):
        link.symlink_to(target)
        assert "it exists already; pass --force" in refusal(str(link), force=False)

        (output,) = prepare_outputs([str(link)], force=True)
        output.write("report")

        assert (secret.read_text(), link.read_bytes(), link.is_symlink()) == ("keep", b"report", False)
        link.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]


def test_pipes_and_devices_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert "it is a pipe or a device; name another file" in refusal(str(tmp_path / "pipe.json"))

    (output,) = prepare_outputs([str(tmp_path / "late.json")], force=True)
    os.mkfifo(tmp_path / "late.json")
    with pytest.raises(OSError, match="it is a pipe or a device"):
        output.write("report")
    assert (tmp_path / "late.json").is_fifo()


@for_each(
    "name", [".json", "..", "", "a\0b.json", f"{'n' * 300}.json", f"{'d/' * 3000}a.json", "no/such/a.json", "/dev/full"]
)
def test_a_name_that_cannot_be_a_report_is_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert refusal(name).startswith("cannot ")
    assert list(tmp_path.iterdir()) == []


@for_each(
    "name",
    ["a\nb.json", "a\x1b[31m.json", "a\u202eb.json", "caf\udce9.json", f"{'n' * 240}.json", "-rf.json", "a b'\".json"],
)
def test_an_odd_name_is_a_name(name: str, tmp_path: Path) -> None:
    (output,) = prepare_outputs([str(tmp_path / name)], force=False)

    output.write("report")

    assert name in os.listdir(tmp_path)  # noqa: PTH208 - as the system has it
    assert refusal(str(tmp_path / name), force=False).isprintable()


def test_a_new_file_has_the_permissions_of_any_new_file_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        path.unlink(missing_ok=True)
        before = os.umask(mask)
        try:
            write_file(path, "x")
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == expected
    for mode in (0o600, 0o640, 0o666):
        path.chmod(mode)
        write_file(path, "new")
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert leftovers(tmp_path) == []


def test_a_file_can_be_read_and_foreseen_by_nobody_else_while_it_is_written(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "report.json") as stream:
            stream.write(b"private")
            (name,) = leftovers(tmp_path)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
            assert (tmp_path / "report.json").exists() == bool(names)
            names.add(name)

    assert len(names) == 3


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as stream:
            stream.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()

    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_a_configuration_from_python_names_a_file_of_the_directory_and_no_other_ones(tmp_path: Path) -> None:
    odd = ["../../x", "/etc/passwd", "..", ".", "", "a/b", "a:b", "a\0b", "a\nb", "\x1b[31m", "n" * 500, "n" * 501, "-"]
    names = ["inductor-layout-opt-off", "a_b", "../a_b", ".a_b", *odd]
    for name in names:
        path = tmp_path / f"{file_name_of(name)}.json.gz"
        path.write_bytes(b"x")
        assert path.parent == tmp_path
        assert path.name.isprintable()

    assert file_name_of("inductor-layout-opt-off") == "inductor-layout-opt-off"
    assert len(list(tmp_path.iterdir())) == len(names)
