"""The shape of the house: which module may import which, what starts without torch, how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

PACKAGE = Path(__file__).parents[1] / "layoutdoctor"
LONGEST_MODULE = 600
# The JSON contract stands in one file; most of its lines say what a field means.
LONGER_MODULES = {"layoutdoctor.records": 1150}

# From the top to the bottom: a module imports from lower lines only, or from its own part.
LINES = (
    ("layoutdoctor.__main__",),
    ("layoutdoctor.commands",),
    ("layoutdoctor",),
    ("layoutdoctor.pytest_plugin",),
    ("layoutdoctor.testing",),
    ("layoutdoctor.changes",),
    ("layoutdoctor.run",),
    ("layoutdoctor.subjects", "layoutdoctor.capture", "layoutdoctor.measure"),
    # ------------------------------------------- the torch line: nothing below imports torch
    ("layoutdoctor.supervisor",),
    ("layoutdoctor.journal",),
    ("layoutdoctor.messages",),
    ("layoutdoctor.processes",),
    ("layoutdoctor.reports",),
    ("layoutdoctor.rules",),
    ("layoutdoctor.examination",),
    ("layoutdoctor.analysis",),
    ("layoutdoctor.recording",),
    ("layoutdoctor.traces",),
    ("layoutdoctor.kernel_names",),
    ("layoutdoctor.kernel_dictionary",),
    ("layoutdoctor.configurations", "layoutdoctor.targets"),
    ("layoutdoctor.privacy",),
    ("layoutdoctor.accepted",),
    ("layoutdoctor.schema",),
    ("layoutdoctor.comparison_records",),
    ("layoutdoctor.records",),
    (
        "layoutdoctor.layout",
        "layoutdoctor.units",
        "layoutdoctor.words",
        "layoutdoctor.errors",
        "layoutdoctor.limits",
        "layoutdoctor.saved",
        "layoutdoctor.consistency",
        "layoutdoctor.writing",
        "layoutdoctor.progress",
        "layoutdoctor._version",
    ),
)
TORCH_LINE = next(number for number, line in enumerate(LINES) if "layoutdoctor.supervisor" in line)
LATE_IMPORTS_UPWARD = {
    ("layoutdoctor.records", "layoutdoctor.privacy"),
    ("layoutdoctor.records", "layoutdoctor.reports"),
    ("layoutdoctor.records", "layoutdoctor.subjects.prepare"),
    ("layoutdoctor.comparison_records", "layoutdoctor.reports"),
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


def imports_of(module: str) -> dict[str, bool]:
    """What a module imports when it runs, and whether only late: within a function. Annotations do not count."""
    found: dict[str, bool] = {}
    _collect(ast.parse(MODULES[module].read_text(encoding="utf-8")), found, late=False)
    return found


def _collect(node: ast.AST, found: dict[str, bool], *, late: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
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
        _collect(child, found, late=late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def part_of(module: str) -> str:
    """The part of the house a module stands in: the package's own files each by itself."""
    return ".".join(module.split(".")[:2])


def line_of(module: str) -> int:
    """The module's line, from 0 at the top; a part that stands in no line fails its own test below."""
    return next((number for number, line in enumerate(LINES) if part_of(module) in line), -1)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_stands_in_a_line(module: str) -> None:
    assert line_of(module) >= 0


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_from_lower_lines_only(module: str) -> None:
    upward = [
        name
        for name, late in imports_of(module).items()
        if name in MODULES and line_of(name) < line_of(module) and not (late and (module, name) in LATE_IMPORTS_UPWARD)
    ]

    assert upward == []


def test_what_runs_a_model_asks_no_rule() -> None:
    parts = ("layoutdoctor.subjects", "layoutdoctor.capture", "layoutdoctor.measure")
    inner = [module for module in MODULES if part_of(module) in parts]

    assert [name for module in inner for name in imports_of(module) if part_of(name) == "layoutdoctor.rules"] == []


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


@pytest.mark.parametrize("module", [name for name in MODULES if line_of(name) >= TORCH_LINE])
def test_nothing_below_the_torch_line_imports_torch(module: str) -> None:
    assert not {name.split(".")[0] for name in imports_of(module)} & {"torch", "triton"}


@pytest.mark.parametrize("module", MODULES)
def test_inner_names_of_the_compiler_live_in_compat_and_in_what_lowers_for_another_device(module: str) -> None:
    inner = {"torch._inductor.graph", "torch._inductor.scheduler", "torch._inductor.ir", "torch._dynamo.utils"}
    homes = ("layoutdoctor.capture.compat", "layoutdoctor.capture.retarget")

    assert module.startswith(homes) or not inner & set(imports_of(module))


@pytest.mark.parametrize("module", MODULES)
def test_a_library_stays_in_its_part_of_the_house(module: str) -> None:
    used = {name.split(".")[0] for name in imports_of(module)} & set(ONE_HOME)

    assert {library for library in used if part_of(module) != ONE_HOME[library]} == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_read_in_one_sitting(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= LONGER_MODULES.get(module, LONGEST_MODULE)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_is_in_it(module: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "statement",
    [
        "import layoutdoctor",
        "from layoutdoctor.__main__ import main; assert main(['explain']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['explain', 'LD101']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['render', {saved!r}, '--recheck']) == 0",
        "from layoutdoctor.__main__ import main; assert main(['m.py', '--budget', '-1']) == 2",
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
        "assert not {'torch', 'triton', 'networkx'} & set(sys.modules)"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
