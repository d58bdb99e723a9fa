"""The shape of the house: which module may import which, what starts without torch, how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx
import pytest
from loops import for_each

PACKAGE = Path(__file__).parents[1] / "layoutdoctor"
LONGEST_MODULE = 600
# The JSON contract stands in one file; most of its lines say what a field means.
LONGER_MODULES = {"layoutdoctor.diagnosis.records": 1150}

# From the top to the bottom: a module imports from lower lines only, or from its own part.
LINES = (
    ("layoutdoctor.__main__",),
    ("layoutdoctor.commands",),
    ("layoutdoctor",),
    ("layoutdoctor.pytest_plugin",),
    ("layoutdoctor.testing",),
    ("layoutdoctor.run.recorded",),
    ("layoutdoctor.run",),
    ("layoutdoctor.subjects",),
    ("layoutdoctor.capture",),
    ("layoutdoctor.measure",),
    ("layoutdoctor.state",),
    # ------------------------------------------- the torch line: nothing below imports torch
    ("layoutdoctor.isolation.supervisor",),
    ("layoutdoctor.isolation.journal",),
    ("layoutdoctor.isolation.messages",),
    ("layoutdoctor.isolation.processes",),
    ("layoutdoctor.reports",),
    ("layoutdoctor.rules",),
    ("layoutdoctor.examination",),
    ("layoutdoctor.analysis",),
    ("layoutdoctor.recording",),
    ("layoutdoctor.recording.reading",),
    ("layoutdoctor.examination.kernels.names",),
    ("layoutdoctor.examination.kernels.names",),
    ("layoutdoctor.diagnosis.configurations", "layoutdoctor.diagnosis.configurations"),
    ("layoutdoctor.privacy",),
    ("layoutdoctor.diagnosis.accepted",),
    ("layoutdoctor.diagnosis.schema",),
    ("layoutdoctor.diagnosis.comparison",),
    ("layoutdoctor.diagnosis.records",),
    (
        "layoutdoctor.diagnosis.layout",
        "layoutdoctor.units",
        "layoutdoctor.words",
        "layoutdoctor.errors",
        "layoutdoctor.diagnosis.saved",
        "layoutdoctor.diagnosis.saved",
        "layoutdoctor.diagnosis.saved",
        "layoutdoctor.diagnosis.writing",
        "layoutdoctor.isolation.messages",
        "layoutdoctor._version",
    ),
)
TORCH_LINE = next(number for number, line in enumerate(LINES) if "layoutdoctor.isolation.supervisor" in line)
LATE_IMPORTS_UPWARD = {
    ("layoutdoctor.diagnosis.records", "layoutdoctor.privacy"),
    ("layoutdoctor.diagnosis.records", "layoutdoctor.reports"),
    ("layoutdoctor.diagnosis.records", "layoutdoctor.subjects.prepare"),
    ("layoutdoctor.diagnosis.comparison", "layoutdoctor.reports"),
    ("layoutdoctor", "layoutdoctor.run.diagnose"),
}
# What only one part of the house may use.
ONE_HOME = {
    "jinja2": "layoutdoctor.reports",
    "networkx": "layoutdoctor.analysis",
    "pandas": "layoutdoctor.reports",
    "pytest": "layoutdoctor.pytest_plugin",
    "rich": "layoutdoctor.commands",
    "tabulate": "layoutdoctor.reports",
}

MODULES = {
    ".".join(("layoutdoctor", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str, *, for_annotations: bool = False) -> dict[str, bool]:
    """What a module imports when it runs, and whether only late: within a function; for annotations where asked."""
    found: dict[str, bool] = {}
    _collect(tree_of(module), found, for_annotations, late=False)
    return found


def libraries_of(module: str) -> set[str]:
    return {name.split(".")[0] for name in imports_of(module)}


def _collect(node: ast.AST, found: dict[str, bool], for_annotations: bool, *, late: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING" and not for_annotations:
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                found[alias.name] = late and found.get(alias.name, True)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                name = whole if whole in MODULES else child.module or ""
                found[name] = late and found.get(name, True)
        _collect(child, found, for_annotations, late=late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def part_of(module: str) -> str:
    """The part of the house a module stands in: the package's own files each by itself."""
    return ".".join(module.split(".")[:2])


def line_of(module: str) -> int:
    """The module's line, from 0 at the top; a part that stands in no line fails its own test below."""
    return next((number for number, line in enumerate(LINES) if part_of(module) in line), -1)


def test_every_module_stands_in_a_line() -> None:
    assert [module for module in MODULES if line_of(module) < 0] == []


def test_every_module_imports_from_lower_lines_only() -> None:
    upward = [
        (module, name)
        for module in MODULES
        for name, late in imports_of(module).items()
        if name in MODULES and line_of(name) < line_of(module) and not (late and (module, name) in LATE_IMPORTS_UPWARD)
    ]

    assert upward == []


def test_what_runs_a_model_asks_no_rule() -> None:
    parts = ("layoutdoctor.subjects", "layoutdoctor.capture", "layoutdoctor.measure")
    inner = [module for module in MODULES if part_of(module) in parts]

    assert [name for module in inner for name in imports_of(module) if part_of(name) == "layoutdoctor.rules"] == []


def test_above_the_torch_line_annotations_point_downward_too() -> None:
    upper = ("run", "subjects", "capture", "measure", "state")
    graph = networkx.DiGraph()
    for module in MODULES:
        if module.startswith(tuple(f"layoutdoctor.{part}." for part in upper)):
            known = [name for name in imports_of(module, for_annotations=True) if name in MODULES]
            graph.add_edges_from((module, name) for name in known)
            assert [name for name in known if line_of(name) < line_of(module)] == [], module

    assert len(graph) > 40
    assert list(networkx.simple_cycles(graph)) == []


def test_no_module_imports_itself_through_others() -> None:
    graph = networkx.DiGraph()
    for module in MODULES:
        late_allowed = {target for source, target in LATE_IMPORTS_UPWARD if source == module}
        graph.add_edges_from(
            (module, name)
            for name, late in imports_of(module).items()
            if name in MODULES and not (late and name in late_allowed)
        )

    assert list(networkx.simple_cycles(graph)) == []


def test_nothing_below_the_torch_line_imports_torch() -> None:
    below = [module for module in MODULES if line_of(module) >= TORCH_LINE]

    assert below
    assert [module for module in below if libraries_of(module) & {"torch", "triton"}] == []


def test_inner_names_of_the_compiler_live_in_compat_and_in_what_lowers_for_another_device() -> None:
    inner = {"torch._inductor.graph", "torch._inductor.scheduler", "torch._inductor.ir", "torch._dynamo.utils"}
    homes = ("layoutdoctor.capture.compat", "layoutdoctor.capture.retarget")

    assert [module for module in MODULES if not module.startswith(homes) and inner & set(imports_of(module))] == []


def test_a_library_stays_in_its_part_of_the_house() -> None:
    astray = [
        (module, library)
        for module in MODULES
        for library in libraries_of(module) & set(ONE_HOME)
        if part_of(module) != ONE_HOME[library]
    ]

    assert astray == []


def test_a_module_can_be_read_in_one_sitting() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}

    assert {name: long for name, long in lengths.items() if long > LONGER_MODULES.get(name, LONGEST_MODULE)} == {}


def test_a_module_says_what_is_in_it() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree_of(module))] == []


@pytest.mark.thorough
@for_each(
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
        "from layoutdoctor.__main__ import main; assert main(['examine', {saved!r}]) == 3",
        "from layoutdoctor.__main__ import main; assert main(['compare', {trace!r}, {trace!r}]) == 0",
        "import layoutdoctor; layoutdoctor.examine_trace({trace!r})",
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
