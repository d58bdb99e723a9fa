"""
An exported program is data: whatever stands in a .pt2 file, nothing of it runs, and genuine ones load.

The hostile ones are loaded in a process with an audit hook, which sees what is executed, imported, started and opened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from security import hostile_exports as hostile

DRIVER = Path(__file__).with_name("load_under_audit.py")
CONTROLS = {
    "an expression",
    "a guard",
    "a text among the inputs",
    "example inputs",
    "a weight",
    "a constant",
    "an opaque value",
    "constants before 2.8",
}
"""Cases of which torch.export.load by itself must run the payload: else they would prove nothing."""

ALSO_UNCHECKED = {"a function of torch", "compiled code", "a factory", "all weights", "a name of a value"}


@pytest.fixture(scope="module")
def maker() -> hostile.Maker:
    return hostile.Maker(hostile.genuine_export())


@pytest.fixture(scope="module")
def cases(maker: hostile.Maker) -> dict[str, bytes]:
    kinds = (hostile.hostile_programs, hostile.hostile_pickles, hostile.hostile_archives, hostile.other_files)
    return {name: data for make in kinds for name, data in make(maker).items()}


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / f"{name.replace(' ', '_')}.pt2"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, maker: hostile.Maker, cases: dict[str, bytes]
) -> dict[str, dict[str, Any]]:
    """What happened, by how it was loaded and by file; in one process, as torch takes its time to start."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "genuine.pt2").write_bytes(maker.data)
    chosen = {"load": set(cases), "unchecked": CONTROLS | ALSO_UNCHECKED, "torch": CONTROLS}
    for mode, names in chosen.items():
        (folder / mode).mkdir()
        for name in names:
            write(folder / mode, name, cases[name])
    words = [sys.executable, str(DRIVER), str(folder / "genuine.pt2")]
    ended = subprocess.run(
        [*words, *(f"{mode}={folder / mode}" for mode in ("load", "torch", "unchecked"))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def outcomes(loaded: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return loaded["load"]


def test_every_case_was_tried(outcomes: dict[str, Any], cases: dict[str, bytes]) -> None:
    assert set(outcomes) == {name.replace(" ", "_") for name in cases}
    assert len(cases) > 70


def test_nothing_ran_was_imported_or_started(outcomes: dict[str, Any]) -> None:
    events = {name: found["events"] for name, found in outcomes.items() if found["events"]}

    # That one holds nothing forbidden: torch reads it, its own annotations are evaluated, and a part is missing.
    assert set(events) == {"no_weights"}
    assert {event[:20] for event in events["no_weights"]} == {"compile (b'Argument'", "exec (<code object <"}
    assert [name for name, found in outcomes.items() if found["ran"]] == []


def test_each_is_refused_in_one_sentence(outcomes: dict[str, Any]) -> None:
    for name, found in outcomes.items():
        assert found["error"] in ("SubjectError", "UsageError"), (name, found)
        assert found["message"].startswith("cannot load "), (name, found)
        assert "\n" not in found["message"], (name, found)
        assert len(found["message"]) < 800, (name, found)
        assert "model.py" in found["message"] or "expected what torch.export.save wrote" in found["message"], found


def test_no_refusal_takes_long(outcomes: dict[str, Any]) -> None:
    assert {name: found["seconds"] for name, found in outcomes.items() if found["seconds"] > 5} == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("an expression", "it holds an expression that is more than arithmetic"),
        ("a guard", "it holds a condition on its inputs that is more than arithmetic"),
        ("a function of torch", "it holds a call of 'torch.os.system', which is none of torch's own operators"),
        ("example inputs", "it holds a pickle that calls 'posix.system', in 'data/sample_inputs/model.pt'"),
        ("compiled code", "it holds compiled code (AOTInductor) in its part 'data/aotinductor/model/m.so'"),
        ("a ScriptObject", "it holds an object of a class of its own (a ScriptObject)"),
        ("a part outside", "it holds a part named '../../outside', which is no plain path"),
        ("a part twice", "it holds two parts named"),
        ("a bomb", "that would unpack to"),
        ("a saved module", "it holds what torch.save wrote, which is a pickle"),
        ("TorchScript", "it holds TorchScript, which is code"),
        ("nothing", "it is empty; expected what torch.export.save wrote"),
        ("garbage", "it is no zip archive; expected what torch.export.save wrote"),
        ("all but the end", "its zip archive is cut off"),
        ("a damaged part", "is damaged (Bad CRC-32"),
    ],
)
def test_a_refusal_says_what_was_found(outcomes: dict[str, Any], name: str, said: str) -> None:
    assert said in outcomes[name.replace(" ", "_")]["message"]


def test_torch_alone_runs_the_payloads(loaded: dict[str, dict[str, Any]]) -> None:
    assert {name for name, outcome in loaded["torch"].items() if not outcome["ran"]} == set()
    assert len(loaded["torch"]) == len(CONTROLS)


def test_what_was_overlooked_in_the_file_is_refused_while_torch_reads(loaded: dict[str, dict[str, Any]]) -> None:
    found = loaded["unchecked"]
    started = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess", "pickle.find_class", "import")

    assert {name: outcome for name, outcome in found.items() if outcome["ran"] or not outcome["error"]} == {}
    assert not any(event.startswith(started) for outcome in found.values() for event in outcome["events"])


def test_a_program_in_the_layout_of_older_versions_loads(tmp_path: Path, maker: hostile.Maker) -> None:
    from layoutdoctor.subjects.load import load_target

    (tmp_path / "old.pt2").write_bytes(hostile.old_layout(maker.data))

    subject = load_target(str(tmp_path / "old.pt2"))

    assert subject.model(*subject.args).shape == (4, 4, 6, 6)


def test_what_was_disarmed_is_as_before(tmp_path: Path, maker: hostile.Maker, cases: dict[str, bytes]) -> None:
    import sympy
    import torch
    from torch._export.serde import serialize
    from torch.export.pt2_archive import _package

    from layoutdoctor.errors import SubjectError
    from layoutdoctor.subjects.load import load_target

    def state() -> list[Any]:
        deserializer = serialize.GraphModuleDeserializer
        return [
            torch.load,
            sympy.sympify,
            serialize._bytes_to_dataclass,
            deserializer.deserialize_operator,
            _package.pickle,
            _package._load_aoti,
            torch._C._pickle_load_obj,
            sorted(map(repr, torch.serialization.get_safe_globals())),
        ]

    before = state()
    (tmp_path / "good.pt2").write_bytes(maker.data)
    load_target(str(tmp_path / "good.pt2"))
    with pytest.raises(SubjectError):
        load_target(str(write(tmp_path, "a guard", cases["a guard"])))

    assert state() == before


def test_a_link_to_a_program_is_a_program(tmp_path: Path, maker: hostile.Maker) -> None:
    from layoutdoctor.subjects.load import load_target

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "net.bin").write_bytes(maker.data)
    (tmp_path / "link.pt2").symlink_to("there/net.bin")

    assert load_target(str(tmp_path / "link.pt2")).name == "link.pt2"


def test_a_pipe_is_no_program(tmp_path: Path) -> None:
    from layoutdoctor.errors import UsageError
    from layoutdoctor.subjects.load import load_target

    os.mkfifo(tmp_path / "pipe.pt2")

    with pytest.raises(UsageError, match="it is no file, expected what"):
        load_target(str(tmp_path / "pipe.pt2"))
