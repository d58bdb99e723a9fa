"""Where reports go: links, names and permissions that somebody else prepared cost nobody a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.commands.output import prepare_outputs
from layoutdoctor.diagnosis.writing import file_name_of, replacing, target_of, write_file
from layoutdoctor.errors import UsageError

SOMEBODY_ELSE = 65534
is_superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can make files of somebody else")


def refusal(name: str, *, force: bool = True) -> str:
    with pytest.raises(UsageError) as caught:
        prepare_outputs([name], force=force)
    message = str(caught.value)
    assert "\n" not in message
    return message


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(".layoutdoctor")]


def test_a_link_to_a_file_counts_as_that_file(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("old")
    (tmp_path / "link.json").symlink_to("there.json")

    assert "it exists already; pass --force" in refusal(str(tmp_path / "link.json"), force=False)

    (output,) = prepare_outputs([str(tmp_path / "link.json")], force=True)
    output.write("new")

    assert (tmp_path / "there.json").read_bytes() == b"new"
    assert (tmp_path / "link.json").is_symlink()

    # A link to nothing needs force too.
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nothing.json")
    assert "it is a link to a file that is not there; pass --force" in refusal(
        str(tmp_path / "dangling.json"), force=False
    )
    (output,) = prepare_outputs([str(tmp_path / "dangling.json")], force=True)
    assert output.path == tmp_path / "nothing.json"
    assert not (tmp_path / "nothing.json").exists()


def test_a_link_that_comes_later_is_replaced_and_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep")
    (output,) = prepare_outputs([str(tmp_path / "report.json")], force=False)
    (tmp_path / "report.json").symlink_to(secret)

    output.write("report")

    assert secret.read_text() == "keep"
    assert (tmp_path / "report.json").read_bytes() == b"report"
    assert not (tmp_path / "report.json").is_symlink()


@is_superuser
@pytest.mark.parametrize("target", ["secret", "nothing"])
def test_a_link_of_somebody_else_in_a_directory_for_everybody_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "secret").write_text("keep")
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o1777)
    (public / "report.json").symlink_to(tmp_path / target)
    os.lchown(public / "report.json", SOMEBODY_ELSE, SOMEBODY_ELSE)

    assert "it is a link of somebody else in a directory for everybody" in refusal(str(public / "report.json"))
    with pytest.raises(PermissionError, match="somebody else"), replacing(public / "report.json") as stream:
        stream.write(b"x")

    assert (tmp_path / "secret").read_text() == "keep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["public", "secret"]


def test_an_own_link_in_a_directory_for_everybody_is_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to("there")

    assert target_of(tmp_path / "link") == tmp_path / "there"


def test_links_in_a_circle_and_into_a_directory_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    (tmp_path / "c.json").symlink_to("gone/b.json")

    assert "Too many levels of symbolic links" in refusal(str(tmp_path / "a.json"))
    assert "it is a link into a directory that is not there" in refusal(str(tmp_path / "c.json"))


@pytest.mark.parametrize(
    "name",
    [".json", "..", "", "a\0b.json", f"{'n' * 300}.json", f"{'d/' * 3000}a.json", "no/such/folder/a.json", "/dev/full"],
)
def test_a_name_that_cannot_be_a_report_is_refused_in_one_line(name: str, tmp_path: Path, monkeypatch: Any) -> None:
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

    assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - as the system has it
    message = refusal(str(tmp_path / name), force=False)
    assert message.isprintable()


def test_one_file_under_two_names_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("")
    (tmp_path / "link.json").symlink_to("there.json")

    with pytest.raises(UsageError, match="twice"):
        prepare_outputs([str(tmp_path / "there.json"), str(tmp_path / "link.json")], force=True)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path, mask: int, expected: int) -> None:
    before = os.umask(mask)
    try:
        write_file(tmp_path / "report.json", "x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == expected
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(mode)

    write_file(path, "new")

    assert stat.S_IMODE(path.stat().st_mode) == mode


@is_superuser
def test_a_replaced_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)

    write_file(path, "new")

    assert path.stat().st_uid == SOMEBODY_ELSE


def test_what_is_being_written_can_be_read_and_foreseen_by_nobody_else(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "report.json") as stream:
            stream.write(b"private")
            stream.flush()
            (name,) = leftovers(tmp_path)
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
            assert (tmp_path / "report.json").exists() == bool(names)
            names.add(name)

    assert len(names) == 3
    assert str(os.getpid()) not in "".join(names)


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


def test_details_never_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("keep")
    (tmp_path / "report.details.md").symlink_to("secret.md")

    assert "which belongs to the report: it is a link; remove it" in refusal(str(tmp_path / "report.md"))


def test_every_output_of_the_command_is_guarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(Path(__file__).parents[1] / "golden" / "gain_with_findings.json")
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "victim.json")

    for words in (["compare", saved, saved, "--output"], ["trace", saved, "--write-accepted"]):
        assert main([*words, str(link)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "victim.json").exists()


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


def test_a_pipe_is_opened_only_when_it_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (output,) = prepare_outputs([str(tmp_path / "pipe.json")], force=True)
    reader = os.open(tmp_path / "pipe.json", os.O_RDONLY | os.O_NONBLOCK)
    try:
        output.write("report")

        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe.json").is_fifo()
    with pytest.raises(OSError, match="it is a pipe that nobody reads from"):
        output.write("report")
