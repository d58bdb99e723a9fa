"""What is read and where reports go: links, pipes, names and permissions of somebody else cost nobody a file."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.commands.output import prepare_outputs
from layoutdoctor.errors import UsageError
from layoutdoctor.files.writing import file_name_of, replacing, write_file
from layoutdoctor.workers.processes import working_folder

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = """{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2}]}"""


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


def test_a_pipe_that_is_made_meanwhile_is_no_file(tmp_path: Path) -> None:
    (output,) = prepare_outputs([str(tmp_path / "late.json")], force=True)
    os.mkfifo(tmp_path / "late.json")
    with pytest.raises(OSError, match="it is a pipe or a device"):
        output.write("report")
    assert (tmp_path / "late.json").is_fifo()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)  # a whole path may be too long for it


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": a_socket,
    "folder": Path.mkdir,
    "link-to-a-pipe": lambda path: (os.mkfifo(f"{path}.fifo"), path.symlink_to(f"{path.name}.fifo")),
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: path.symlink_to("nowhere"),
    "x" * 300: lambda path: None,
    "/".join("x" * 3000): lambda path: None,
    "a\0b": lambda path: None,
}
"""Paths that are no file, and what makes them."""


@pytest.mark.parametrize(
    "words",
    [
        "trace X.json",
        "trace X.sqlite",
        "trace good.json --accepted X",
        "trace good.json --write-accepted X --force",
        "trace good.json --output X.html --force",
        "examine X.recording",
        "render X.json",
        "compare good.json X.json",
        "compare saved.json X.json",
        "scan X.json",
        "scan X.zip",
        "scan X.tar.gz",
        "scan good.json --output X.jsonl --force",
        "scan good.json --output X.parquet --force",
        "scan good.json --resume X",
        "run X.py --module m",
        "diagnose --list X",
    ],
)
def test_a_path_that_is_no_file_is_refused_in_one_line_wherever_it_is_given(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / words.replace("/", "")
    here.mkdir()
    monkeypatch.chdir(here)
    Path("good.json").write_text(GOOD)
    assert main(["trace", "good.json", "-q", "--output", "saved.json"]) == 0
    before = next(word for word in words.split() if word.startswith("X"))
    for name, make in ODD.items():
        path = Path(f"{name}{before[1:]}")
        make(path)
        mode = path.lstat().st_mode if len(name) < 256 and os.path.lexists(path) else None
        capsys.readouterr()

        status = main([str(path) if word == before else word for word in [*words.split(), "-q"]])

        said = capsys.readouterr()
        assert status in (0, 2, 3), (name, said)
        assert status != 2 or said.err.startswith("layoutdoctor: error: cannot "), name
        assert said.err.count("\n") == (status == 2 or not said.out), (name, said.err)
        assert mode is None or stat.S_ISLNK(mode) or path.lstat().st_mode == mode, name


def test_a_working_folder_that_was_removed_costs_nothing_but_relative_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, gone = tmp_path / "good.json", tmp_path / "gone"
    there.write_text(GOOD)
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words, status in (
        (["trace", str(there)], 0),
        (["scan", str(there)], 0),
        (["compare", str(there), str(there)], 0),
        (["explain", "101"], 0),
        (["render", "saved.json"], 3),
        (["schema", "--output", "x.json"], 2),
        (["run", "m.py", "--module", "x"], 2),
    ):
        assert main([*words, *(["-q"] if words[0] != "explain" else [])]) == status, capsys.readouterr()
    assert working_folder(tmp_path) == tmp_path


def test_a_working_folder_that_may_not_be_entered_costs_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert working_folder(tmp_path / "other") == tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)  # whoever runs the tests may enter any folder
    assert working_folder(tmp_path / "other") == tmp_path / "other"


@pytest.mark.parametrize(
    "name", [".json", "..", "", "a\0b.json", f"{'n' * 300}.json", f"{'d/' * 3000}a.json", "no/such/a.json", "/dev/full"]
)
def test_a_name_that_cannot_be_a_report_is_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert refusal(name).startswith("cannot ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
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
