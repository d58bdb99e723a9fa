"""The shape of the house: which module may import which, what starts without torch, how long a module may be."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

house = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "house.py")))

MODULES, line_of = house.MODULES, house.line_of
IMPORTS = {module: house.imports_of(module) for module in MODULES}
LONGEST_MODULE = 600
MOST_ROOT_FILES = 10
# What only one part of the house may use.
ONE_HOME = {
    "distributed": "layoutdoctor.fleet",
    "fsspec": "layoutdoctor.fleet",
    "jinja2": "layoutdoctor.reports",
    "networkx": "layoutdoctor.examination",
    "pandas": "layoutdoctor.reports",
    "pyarrow": "layoutdoctor.fleet",
    "pytest": "layoutdoctor.pytest_plugin",
    "rich": "layoutdoctor.commands",
    "tabulate": "layoutdoctor.reports",
}


@cache
def libraries_of(module: str) -> set[str]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in [*ast.walk(tree)]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    imported = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in imported if isinstance(node, ast.ImportFrom) and node.level]
    names = [alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in imported if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_every_module_stands_in_a_line_and_imports_from_lower_lines_only() -> None:
    assert [module for module in MODULES if line_of(module) < 0] == []
    upward = {
        (module, name)
        for module, imports in IMPORTS.items()
        for name, late in imports.items()
        if name in MODULES and line_of(name) < line_of(module) and not (late and (module, name) in house.UPWARD)
    }

    assert upward == set()


def test_no_module_imports_itself_through_others() -> None:
    assert house.circle() == []


def test_what_is_seen_is_not_examined_where_it_is_seen() -> None:
    """Subjects, capture and measuring ask no rule and no report; a trial calls ``examine`` and nothing else of it."""
    inner = [module for module in MODULES if line_of("layoutdoctor.run") < line_of(module) < house.TORCH_LINE]
    upper = {"layoutdoctor.rules", "layoutdoctor.reports"}

    assert inner
    assert [(module, name) for module in inner for name in IMPORTS[module] if house.part_of(name) in upper] == []


def test_the_package_has_few_files_of_its_own() -> None:
    assert len(list(house.PACKAGE.glob("*.py"))) <= MOST_ROOT_FILES


def test_nothing_below_the_torch_line_imports_torch() -> None:
    below = [module for module in MODULES if line_of(module) >= house.TORCH_LINE]

    assert below
    assert [module for module in below if libraries_of(module) & {"torch", "triton"}] == []


def test_inner_names_of_the_compiler_live_in_compat_and_in_what_lowers_for_another_device() -> None:
    inner = {"torch._inductor.graph", "torch._inductor.scheduler", "torch._inductor.ir", "torch._dynamo.utils"}
    homes = ("layoutdoctor.capture.compat", "layoutdoctor.capture.retarget")

    assert [module for module in MODULES if not module.startswith(homes) and inner & set(IMPORTS[module])] == []


def test_a_library_stays_in_its_part_of_the_house() -> None:
    astray = [
        (module, library)
        for module in MODULES
        for library in libraries_of(module) & set(ONE_HOME)
        if house.part_of(module) != ONE_HOME[library]
    ]

    assert astray == []


def test_a_module_can_be_read_in_one_sitting_and_says_what_is_in_it() -> None:
    texts = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
    lengths = {module: len(text.splitlines()) for module, text in texts.items()}

    assert {name: long for name, long in lengths.items() if long > LONGEST_MODULE} == {}
    assert [module for module, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []


def test_the_map_of_the_house_names_files_that_are_there_on_three_short_ways() -> None:
    text = (house.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    ways = [re.findall(r"^\| `(layoutdoctor/[^`]+)`", part, re.MULTILINE) for part in text.split("\n## ")]
    tensor, time, event = (way for way in ways if way)

    assert (len(tensor) <= 20, len(time) <= 6, len(event) <= 12) == (True, True, True)
    assert [way for way in ways if len(way) != len(set(way))] == []
    named = set(re.findall(r"`(layoutdoctor/[\w/]+\.py)`", text))
    assert [name for name in named if not (house.ROOT / name).exists()] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "statement",
    [
        "import layoutdoctor",
        "from layoutdoctor.__main__ import main; assert main(['explain']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['explain', 'LD101']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['render', {saved!r}, '--recheck']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['m.py', '--budget', '-1']) == 2",
        "from layoutdoctor.__main__ import main; assert main(['schema']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['schema', 'accepted']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['explain', '--all', '--format', 'markdown']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['trace', {trace!r}]) == 0",
        "from layoutdoctor.__main__ import main; assert main(['compare', {saved!r}, {saved!r}]) == 0",
        "from layoutdoctor.__main__ import main; assert main(['show', {saved!r}]) == 0",
        "from layoutdoctor.__main__ import main; assert main(['compare', {trace!r}, {trace!r}]) == 0",
        "import layoutdoctor; layoutdoctor.examine_trace({trace!r})",
        "from layoutdoctor.diagnosis.saved import load; load({saved!r}).to_html()",
    ],
)
def test_it_starts_without_torch(statement: str) -> None:
    tests = Path(__file__).parent
    saved = str(tests / "golden" / "gain_with_findings.json")
    trace = str(tests / "traces" / "h100_vit_patch_embed.json.gz")
    code = (
        f"{statement.format(saved=saved, trace=trace)}\nimport sys\n"
        "assert not {'torch', 'triton', 'networkx', 'pandas'} & set(sys.modules)"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr


PRINTED = frozenset(
    "cause claim detail explanation graph_break_reasons lacks log message not_understood note notes proof reason "
    "recompile_reasons reference suggestion what".split()
)
"""Names of what holds text that a report prints."""
LOOKS_AT_TEXT = frozenset("count endswith find index partition removeprefix removesuffix split startswith".split())
FOREIGN_TEXT = {
    ("capture/session.py", "_FRAME_NUMBER.match(reason)"): "torch's own text",
    ("reports/sections/details.py", "log.find('Current thread 0x')"): "stacks of faulthandler",
    ("recording/torch_trace.py", "_ANNOTATED.match(note)"): "a comment in generated code",
}
"""Text of other programs, of which the part that is read is named."""


def _names_in(*trees: ast.AST) -> set[str]:
    parts = [part for tree in trees for part in ast.walk(tree)]
    return {part.attr for part in parts if isinstance(part, ast.Attribute)} | {
        part.id for part in parts if isinstance(part, ast.Name)
    }


def _looks_at_printed_text(code: ast.AST) -> bool:
    match code:
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in LOOKS_AT_TEXT:
            return bool(_names_in(value) & PRINTED)
        case ast.Call(func=ast.Attribute(attr="search" | "match" | "fullmatch"), args=args):
            return bool(_names_in(*args) & PRINTED)
        case ast.Compare(ops=[ast.In() | ast.NotIn()], left=ast.Constant(value=str()), comparators=comparators):
            return bool(_names_in(*comparators) & PRINTED)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=str(text))]):
            return " " in text and bool(_names_in(left) & PRINTED)
    return False


def test_no_text_that_a_report_prints_is_looked_at_again() -> None:
    found = {
        (str(path.relative_to(house.ROOT / "layoutdoctor")), ast.unparse(code))
        for path in MODULES.values()
        for code in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _looks_at_printed_text(code)
    }

    assert sorted(found ^ set(FOREIGN_TEXT)) == []
