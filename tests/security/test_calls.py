"""Calls that touch files, processes or code: docs/security.md names each with the reason why it is safe."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE, PAGE = ROOT / "layoutdoctor", ROOT / "docs" / "security.md"
FUNCTIONS = {
    "": re.compile(r"exec|eval|compile|__import__"),
    "os": re.compile(
        r"remove|unlink|rmdir|removedirs|replace|renames?|system|popen|kill|killpg|fork|forkpty|exec\w+|spawn\w+|"
        r"posix_spawnp?|symlink|link|truncate"
    ),
    "shutil": re.compile(r"rmtree|move|copy|copy2|copyfile|copytree"),
    "subprocess": re.compile(r"[a-zA-Z]\w*"),
    "runpy": re.compile(r"\w+"),
    "pickle": re.compile(r"loads?|Unpickler"),
    "marshal": re.compile(r"loads?"),
    "importlib": re.compile(r"import_module|reload"),
    "multiprocessing": re.compile(r"get_context|Process|Pool"),
    "ctypes": re.compile(r"CDLL|PyDLL"),
    "torch": re.compile(r"load"),
    "torch.export": re.compile(r"load"),
}
METHODS = re.compile(r"unlink|rmdir|rename|symlink_to|hardlink_to|exec_module|load_module")


def calls_in(source: str) -> Iterator[str]:
    """The calls of a file by full name, whatever it was imported as; ``.name`` for methods."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {(one.asname or one.name.split(".")[0]): one.name for one in node.names if one.asname} | {
                one.name.split(".")[0]: one.name.split(".")[0] for one in node.names if not one.asname
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, _, rest = ast.unparse(node.func).partition(".")
        module, _, name = (known.get(first, first) + (f".{rest}" if rest else "")).rpartition(".")
        if module in FUNCTIONS and FUNCTIONS[module].fullmatch(name):
            yield f"{module}.{name}".lstrip(".")
        elif isinstance(node.func, ast.Attribute):
            is_path = name == "replace" and len(node.args) == 1 and not node.keywords  # a text's takes two arguments
            is_unpickled = name == "load" and "unpickler" in module.lower()
            if METHODS.fullmatch(name) or is_path or is_unpickled:
                yield f".{name}"


def test_every_call_is_in_the_table_with_a_reason_and_every_row_has_its_call() -> None:
    rows = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {
        (path.relative_to(PACKAGE).as_posix(), call)
        for path in PACKAGE.rglob("*.py")
        for call in calls_in(path.read_text(encoding="utf-8"))
    }

    assert {(file, call) for file, call, _ in rows} == found
    assert len(rows) == len(found) > 30
    assert all(len(reason) > 2 for *_, reason in rows)


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("from shutil import rmtree as gone\ngone(path)", ["shutil.rmtree"]),
        ("import os as system\nsystem.execvp('x', [])", ["os.execvp"]),
        ("import subprocess\nsubprocess.check_output(['x'])", ["subprocess.check_output"]),
        ("eval(text)\nmodel.eval()\nre.compile('x')", ["eval"]),
        (
            "Path('x').unlink()\nPath('x').replace(y)\n'x'.replace('a', 'b')\nreplace(record, name='x')",
            [".unlink", ".replace"],
        ),
        ("def f():\n    from pickle import loads\n    loads(data)", ["pickle.loads"]),
        ("import torch\ntorch.load(path)\ntorch.export.load(path)", ["torch.load", "torch.export.load"]),
    ],
)
def test_a_call_is_seen_under_any_name(source: str, calls: list[str]) -> None:
    assert list(calls_in(source)) == calls
