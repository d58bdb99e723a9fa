"""
Loads every .pt2 file of a folder with an audit hook and says on standard output what happened.

Called as ``load_under_audit.py GENUINE MODE=FOLDER...``: MODE ``load`` loads as the command does, ``torch`` with
torch.export.load alone, ``unchecked`` as the command does but without the look at the file, and comes last.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from layoutdoctor.subjects import exported
from layoutdoctor.subjects.load import load_target

WATCHED = ("exec", "import", "os.", "subprocess.", "pickle.find_class", "ctypes.", "socket.", "shutil.", "marshal.")
HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fspath")

events: list[str] = []
is_watching = False
allowed_path = ""


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not is_watching or event in HARMLESS:
        return
    if event == "compile" and arguments[1] in ("<unknown>", b"<unknown>"):
        return  # ast.parse: builds a tree
    if event == "open" and arguments[0] != allowed_path:
        events.append(f"open {arguments[0]}")
    elif event.startswith(WATCHED) or event == "compile":
        events.append(f"{event} {arguments!r}"[:300])


def load(mode: str, path: Path) -> None:
    if mode == "torch":
        program = torch.export.load(path)
        args, kwargs = program.example_inputs
        program.module()(*args, **kwargs)
    else:
        subject = load_target(str(path))
        subject.model(*subject.args, **subject.kwargs)


def main(genuine: Path, folders: list[str]) -> None:
    load("load", genuine)  # whatever torch imports late is there from now on
    b"a".decode("cp437")  # of the names in a zip archive
    sys.addaudithook(watch)
    outcomes = {}
    for given in folders:
        mode, _, folder = given.partition("=")
        if mode == "unchecked":
            exported._check_file = lambda *_: None
        os.environ["CANARY"] = f"{folder}/ran"
        os.chdir(folder)
        outcomes[mode] = load_all(mode, Path(folder))
    print(json.dumps(outcomes))


def load_all(mode: str, folder: Path) -> dict[str, Any]:
    global is_watching, allowed_path
    outcomes = {}
    for path in sorted(folder.glob("*.pt2")):
        events.clear()
        allowed_path = str(path)
        error, message, start = "", "", time.monotonic()
        is_watching = True
        try:
            load(mode, path)
        except BaseException as raised:
            is_watching = False
            error, message = type(raised).__name__, str(raised)
        is_watching = False
        left = [other for other in folder.iterdir() if other.suffix != ".pt2"]
        outcomes[path.stem] = {
            "error": error,
            "message": message,
            "events": list(events),
            "ran": bool(left),
            "seconds": time.monotonic() - start,
        }
        for other in left:
            other.unlink()
    return outcomes


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
