"""A module of a script: found by any way to write it, saved with what it got, else said why not."""

from __future__ import annotations

import contextlib
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

from layoutdoctor.errors import SubjectError, TransportError, UsageError
from layoutdoctor.run.program import _Program
from layoutdoctor.subjects.recorded_inputs import UnderAutocast
from layoutdoctor.subjects.transport import load_subject
from layoutdoctor.workers.program import Asked, run_script

if TYPE_CHECKING:
    from layoutdoctor.subjects.subject import LoadedSubject

SCRIPT = """\
import os, sys, threading
import torch
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)])

    def forward(self, z, scale=1.0):
        return self.parts[1](self.parts[0](z)) * scale

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv2d(3, 4, 3)
        self.decoder = Decoder()

    def decode(self, z):
        return self.decoder(z, scale=0.5)

class Pipeline:
    def __init__(self):
        self.vae = VAE()
        self.stages = [nn.Linear(4, 4), self.vae.decoder]
        self.by_name = {"decoder": self.vae.decoder}

    @torch.no_grad()
    def __call__(self, z):
        return self.vae.decode(self.stages[0](z).to(memory_format=torch.channels_last))

def main(size):
    pipe = Pipeline()
    z = torch.randn(2, 4, size, 4)
    ACTION
    print("the end")

if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 8)
"""


def private(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def script(folder: Path, action: str = "pipe(z)") -> Path:
    path = folder / "generate.py"
    path.write_text(SCRIPT.replace("ACTION", textwrap.indent(action, "    ").strip()), encoding="utf-8")
    return path


def recorded(folder: Path, path: str, action: str = "pipe(z)", *words: str) -> LoadedSubject:
    directory = private(folder)
    outcome = _Program(script(folder, action), path, directory).run(words)
    assert [(one.folder, one.call_count) for one in outcome.calls] == [("0", 1)]
    return load_subject(directory / "0")


@pytest.mark.parametrize(
    "path",
    ["pipe.vae.decoder", "self.vae.decoder", "self.decoder", "pipe.stages.1", "pipe.by_name.decoder"],
)
def test_a_module_is_found_by_every_way_the_running_code_could_write(path: str, tmp_path: Path) -> None:
    subject = recorded(tmp_path, path, "pipe(z)", "6")
    assert subject.name == f"generate.py ({path})"
    assert (subject.args[0].shape, subject.args[0].stride()) == ((2, 4, 6, 4), (96, 1, 16, 4))
    assert subject.kwargs == {"scale": 0.5}
    assert type(subject.model).__name__ == "Decoder"
    assert subject.model(*subject.args, **subject.kwargs).shape == (2, 2, 6, 4)


ACTIONS = {
    "a module at the top of it": "global top\ntop = pipe.vae\ntop.decode(z)",
    "a compiled caller": "torch.compile(pipe.vae.decode, backend='eager')(z)",
    "inference mode": "with torch.inference_mode():\n    pipe(z)",
    "an expanded view": "pipe.vae.decode(z[:1].expand(2, -1, -1, -1))",
    "a script that catches everything": "try:\n    pipe(z)\nexcept BaseException:\n    pipe(z)",
}


@pytest.mark.parametrize("how", list(ACTIONS))
def test_a_module_is_found_however_the_program_calls_it(how: str, tmp_path: Path) -> None:
    subject = recorded(tmp_path, "pipe.vae.decoder", ACTIONS[how])
    assert type(subject.model).__name__ == "Decoder"
    (z,) = subject.args
    assert (z.shape, z.is_leaf, z.is_inference()) == ((2, 4, 8, 4), True, False)
    subject.model(z, **subject.kwargs).sum().backward()


def test_autocast_around_the_call_is_part_of_it_and_of_nothing_else(tmp_path: Path) -> None:
    action = "with torch.autocast('cpu', torch.bfloat16):\n    pipe(z)"
    subject = recorded(tmp_path, "pipe.vae.decoder", action)
    assert isinstance(subject.model, UnderAutocast)
    assert subject.model(*subject.args, **subject.kwargs).dtype == torch.bfloat16
    assert "runs under autocast (bfloat16), as in the recorded call" in subject.notes


CALLS = "for size in (8, 6, 8, 8):\n    pipe(z[:, :, :size])"


@pytest.mark.parametrize(
    ("count", "action", "expected", "why_no_more"),
    [
        (9, CALLS, [("2x4x8x4", 3), ("2x4x6x4", 1)], "generate.py came to its end"),
        (3, f"{CALLS}\nraise SystemError", [("2x4x8x4", 2), ("2x4x6x4", 1)], None),
        (9, f"{CALLS}\nraise ValueError('late')", [("2x4x8x4", 3), ("2x4x6x4", 1)], "ValueError: late"),
        (2, "while True:\n    try:\n        pipe(z)\n    except Exception:\n        pass", [("2x4x8x4", 2)], None),
    ],
)
def test_each_kind_of_call_is_saved_once_and_counted(
    count: int, action: str, expected: list[tuple[str, int]], why_no_more: str | None, tmp_path: Path
) -> None:
    directory = private(tmp_path)
    outcome = _Program(script(tmp_path, action), "pipe.vae.decoder", directory, count).run([])
    assert [(one.shapes, one.call_count) for one in outcome.calls] == expected
    assert outcome.message is None if why_no_more is None else why_no_more in str(outcome.message)
    for one in outcome.calls:
        assert "x".join(map(str, load_subject(directory / one.folder).args[0].shape)) == one.shapes


REFUSED: dict[str, tuple[str, str, type[Exception], str]] = {
    "never called": (
        "pipe.vae.encoder",
        "pipe(z)",
        SubjectError,
        "cannot diagnose pipe.vae.encoder: generate.py came to its end without calling it; calling its .forward() "
        "directly is not seen: call the module",
    ),
    "another name": (
        "pipe.vea.decoder",
        "pipe(z)",
        UsageError,
        "cannot find pipe.vea.decoder in generate.py: did you mean pipe.vae.decoder",
    ),
    "no name at all": (
        "unet",
        "pipe(z)",
        UsageError,
        "cannot find unet in generate.py, which came to its end: it called these modules with convolutions: "
        "pipe.vae.decoder; put arguments for the script after --",
    ),
    "nothing called": (
        "unet",
        "pass",
        UsageError,
        "it called no module with convolutions in its own process; other processes are not watched; put arguments",
    ),
    "an exception": (
        "pipe.vae.decoder",
        "raise ValueError('no image')",
        SubjectError,
        "cannot run generate.py: ValueError: no image (generate.py:35); fix this error first; pipe.vae.decoder was "
        "not called until then",
    ),
    "what cannot be saved": (
        "pipe.vae.decoder",
        "pipe.vae.decoder.lock = threading.Lock()\npipe(z)",
        TransportError,
        "model.lock (lock) cannot be pickled: TypeError: cannot pickle '_thread.lock' object; make it at its first "
        "use, leave it out in __getstate__, or diagnose the model as a file",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_does_not_work_is_said_in_a_sentence(what: str, tmp_path: Path) -> None:
    path, action, kind, sentence = REFUSED[what]
    program = _Program(script(tmp_path, action), path, private(tmp_path))
    if what == "what cannot be saved":
        outcome = program.run([])
        assert outcome.kind == kind.__name__
        said: Any = outcome.message
    else:
        with pytest.raises(kind) as caught:
            program.run([])
        said = str(caught.value)
    assert sentence in said


def test_without_a_name_the_modules_with_convolutions_are_listed(tmp_path: Path) -> None:
    outcome = _Program(
        script(tmp_path, "pipe.vae.encoder(torch.randn(1, 3, 8, 8))\npipe(z)\npipe(z)"), None, private
    ).run([])
    assert [(one.name, one.convolution_count, one.call_count) for one in outcome.modules] == [
        ("pipe.vae.decoder", 2, 2)
    ]
    assert 0 < outcome.modules[0].share <= 1


def test_a_process_of_its_own_says_what_came_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    action = "thread = threading.Thread(target=pipe, args=(z,))\nthread.start()\nthread.join()"
    directory, again = private(tmp_path), private(tmp_path)
    run_script(script(tmp_path, action), Asked(module="self.vae.decoder"), ["6"], directory)
    assert load_subject(directory / "0").args[0].shape == (2, 4, 6, 4)
    with pytest.raises(
        SubjectError, match=r"generate.py: the process ended with exit status 3, as after os._exit\(\), before"
    ):
        run_script(
            script(tmp_path, "print('so far')\nsys.stdout.flush()\nos._exit(3)"),
            Asked(module="pipe.vae.decoder"),
            [],
            again,
        )
    out, err = capfd.readouterr()
    assert (out, "so far" in err) == ("", True)
    with pytest.raises(UsageError, match=r"did you mean pipe\.vae\.decoder"):
        run_script(script(tmp_path), Asked(module="pipe.vae.decodr"), [], again)


def test_a_script_that_catches_everything_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = """\
import subprocess
for is_apart in (False, True):
    print(subprocess.Popen(["sleep", "4242"], start_new_session=is_apart).pid, file=open("pids", "a"))
while True:
    try:
        pipe(z)
    except BaseException:
        pass"""
    directory = private(tmp_path)
    monkeypatch.chdir(tmp_path)

    run_script(script(tmp_path, action), Asked(module="pipe.vae.decoder"), [], directory)

    assert load_subject(directory / "0").args[0].shape == (2, 4, 8, 4)
    started = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(started) == 2
    end = time.monotonic() + 10.0  # one that was killed needs a moment to end
    while any(is_alive(pid) for pid in started):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
