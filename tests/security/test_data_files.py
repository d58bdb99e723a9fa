"""
Saved diagnoses, traces, logs and accepted findings are data.

They are read in a process with an audit hook: nothing is executed, imported or started, and no file but the named one
is opened. Bombs cost neither the memory nor the minute.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
DRIVER = Path(__file__).with_name("read_under_audit.py")
MOST_PEAK_KIB = 1 << 20
PAYLOAD = "__import__('os').system('touch ran')"


class Touch:
    """Unpickled, it runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def database(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COLUMNS = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, shortName INTEGER, demangledName INTEGER"


def hostile_databases(folder: Path) -> None:
    strings = "CREATE TABLE StringIds (id INTEGER, value TEXT)"
    database(
        folder / "view.sqlite",
        strings,
        f"CREATE VIEW {KERNELS} AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT "
        "start, start + 1 AS end, 0 AS deviceId, 7 AS streamId, 1 AS shortName, 1 AS demangledName FROM n",
    )
    database(
        folder / "names.sqlite",
        strings,
        f"CREATE TABLE {KERNELS} ({COLUMNS})",
        """CREATE TABLE "x"" ; ATTACH 'ran' AS y; --" (id)""",
        "INSERT INTO StringIds VALUES (1, '\x1b]0;x\x07::error::ampere_cudnn nchwToNhwcKernel')",
        f"INSERT INTO {KERNELS} VALUES (1, 2, 0, 7, 1, 1)",
    )
    # A schema that was not written by SQLite: what it would not let anybody create.
    edited = f"CREATE TABLE {KERNELS} ({COLUMNS}, correlationId AS (load_extension(''ran'')))"
    database(
        folder / "edited.sqlite",
        strings,
        f"CREATE TABLE {KERNELS} ({COLUMNS}, correlationId INTEGER)",
        f"INSERT INTO {KERNELS} VALUES (1, 2, 0, 7, 1, 1, 3)",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = '{edited}' WHERE name = '{KERNELS}'",
    )


def hostile_files(folder: Path) -> None:
    hostile_databases(folder)
    saved = json.loads((TESTS / "golden" / "gain_with_findings.json").read_text())
    saved["subject"]["name"] = PAYLOAD
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("../../ran", "x")
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../ran"), io.BytesIO())
    event = '{"ph": "X", "cat": "kernel", "name": "%s", "ts": 1, "dur": 1, "pid": 0, "tid": 7, "args": {}}'
    files = {
        "pickle.pkl": pickle.dumps(Touch()),
        "packed_pickle.json.gz": gzip.compress(pickle.dumps(Touch())),
        "yaml.json": b"!!python/object/apply:os.system ['touch ran']\n",
        "xml.json": b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
        "diagnosis.json": json.dumps(saved).encode(),
        "trace.json": ('{"traceEvents": [' + event % "x' + " + PAYLOAD.replace('"', "") + "]}").encode(),
        "deep.json": b'{"traceEvents": ' + b"[" * 500_000,
        "deep_diagnosis.json": b'{"schema_version": 1, "layoutdoctor_version": "1", "x": ' + b'{"a":' * 200_000,
        "long_number.json": b'{"traceEvents": [{"ph": "X", "ts": ' + b"9" * 3_000_000 + b"}]}",
        "huge_line.log": b"onednn_verbose,info,oneDNN v3.1\n" + b"onednn_verbose," + b"x" * 20_000_000,
        "formula.csv": b'Time (%),Total Time (ns),Instances,Avg (ns),Name\n1.0,100,1,100,"=cmd|x"\n',
        "zip.json": zipped.getvalue(),
        "tar.json": tarred.getvalue(),
        "bomb.json.gz": gzip.compress(b"0" * (160 << 20), 9),
        "bomb_of_events.json.gz": gzip.compress(b'{"traceEvents": [' + b"{}," * (2 << 20), 9),
        "bomb_in_bomb.json.gz": gzip.compress(gzip.compress(b"\0" * (64 << 20)), 9),
        "nothing.json": b"",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "link.json").symlink_to("/etc/passwd")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, empty = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("here")
    hostile_files(folder)
    for path in (TESTS / "fuzz" / "corpus").iterdir():
        (folder / f"genuine_{path.name}").write_bytes(path.read_bytes())
    ended = subprocess.run(
        [sys.executable, str(DRIVER), str(folder), str(TESTS / "fuzz" / "corpus")],
        capture_output=True,
        text=True,
        check=False,
        cwd=empty,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    outcomes: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    outcomes["beside"] = sorted(path.name for path in folder.iterdir())
    outcomes["given"] = len(outcomes["outcomes"]) // 3
    return outcomes


def test_nothing_is_executed_imported_opened_or_left_behind(found: dict[str, Any]) -> None:
    assert {name: outcome["events"] for name, outcome in found["outcomes"].items() if outcome["events"]} == {}
    assert found["cwd"] == []
    assert len(found["beside"]) == found["given"]


def test_a_bomb_costs_neither_memory_nor_time(found: dict[str, Any]) -> None:
    assert found["peak_kib"] < MOST_PEAK_KIB
    assert {name: outcome["seconds"] for name, outcome in found["outcomes"].items() if outcome["seconds"] > 60} == {}


def test_what_is_wrong_is_said_in_one_line_and_the_genuine_ones_are_read(found: dict[str, Any]) -> None:
    messages = {name: outcome["message"] for name, outcome in found["outcomes"].items()}
    read = [name for name, message in messages.items() if not message]

    assert {name: message for name, message in messages.items() if message.startswith("BUG")} == {}
    assert {name: message for name, message in messages.items() if "\n" in message or len(message) > 1200} == {}
    assert sum(name.startswith("genuine_") for name in read) >= 10
    assert {"names.sqlite as trace", "diagnosis.json as diagnosis"} <= set(read)
    for name, said in (
        ("pickle.pkl as trace", "a pickle"),
        ("bomb_in_bomb.json.gz as trace", "packed with gzip twice"),
        ("zip.json as trace", "a zip archive"),
        ("tar.json as trace", "a tar archive"),
        ("link.json as diagnosis", "cannot read"),
        ("deep_diagnosis.json as diagnosis", "nested too deeply"),
    ):
        assert said in messages[name]
