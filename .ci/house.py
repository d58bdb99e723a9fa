"""
The size of the package beside its budget, and which module imports which.

``make house`` prints it, ``make check`` holds the budget, ``tests/test_architecture.py`` the imports.
"""

from __future__ import annotations

import ast
import graphlib
import io
import sys
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "layoutdoctor"
BUDGET = ROOT / ".ci" / "house_budget.txt"

# From the top to the bottom: a module imports from lower lines only, or from its own part.
LINES = (
    ("layoutdoctor.__main__",),
    ("layoutdoctor.commands",),
    ("layoutdoctor",),
    ("layoutdoctor.pytest_plugin",),
    ("layoutdoctor.testing",),
    ("layoutdoctor.run",),
    ("layoutdoctor.subjects",),
    ("layoutdoctor.capture",),
    ("layoutdoctor.measure",),
    ("layoutdoctor.state",),
    # ------------------------------------------- the torch line: nothing below imports torch
    ("layoutdoctor.workers",),
    ("layoutdoctor.fleet",),
    ("layoutdoctor.reports",),
    ("layoutdoctor.rules",),
    ("layoutdoctor.examination",),
    ("layoutdoctor.recording",),
    ("layoutdoctor.privacy",),
    ("layoutdoctor.words",),
    ("layoutdoctor.diagnosis",),
    ("layoutdoctor.files",),
    ("layoutdoctor.units",),
    ("layoutdoctor.errors", "layoutdoctor._version"),
)
# The only imports upward, within a function each: what users call on a record, and the package's own lazy names.
UPWARD = {
    ("layoutdoctor.diagnosis.diagnosis", "layoutdoctor.reports"),
    ("layoutdoctor.diagnosis.trial", "layoutdoctor.subjects.prepare"),
}
TORCH_LINE = LINES.index(("layoutdoctor.workers",))

MODULES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def part_of(module: str) -> str:
    """The part of the house that a module belongs to; each of the package's own files is one."""
    return ".".join(module.split(".")[:2])


def line_of(module: str) -> int:
    """The module's line, from 0 at the top; -1 for a part that is in no line."""
    return next((number for number, line in enumerate(LINES) if part_of(module) in line), -1)


@cache
def imports_of(module: str) -> dict[str, bool]:
    """What a module imports, annotations included, and whether only late: within a function."""
    found: dict[str, bool] = {}
    _collect(ast.parse(MODULES[module].read_text(encoding="utf-8")), found, late=False)
    return found


def _collect(node: ast.AST, found: dict[str, bool], *, late: bool) -> None:
    for child in ast.iter_child_nodes(node):
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            whole = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name if name in MODULES else child.module or "" for name in whole]
        for name in names:
            found[name] = late and found.get(name, True)
        _collect(child, found, late=late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def circle() -> list[str]:
    """Modules that import each other, one after the other; imports within functions do not count."""
    edges = {
        module: {name for name, is_late in imports_of(module).items() if name in MODULES and not is_late}
        for module in MODULES
    }
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def line_counts(text: str) -> tuple[int, int]:
    """All lines of a file, and those that hold code: what is no docstring, comment or blank."""
    spare: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node):
            spare.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    kept = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            kept.update(range(token.start[0], token.end[0] + 1))
    return len(text.splitlines()), len(kept - spare)


def functions_of(module: str) -> list[tuple[int, str]]:
    """Length in lines and name of each function of a module."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module}:{node.name}")
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def read_budget() -> dict[str, int]:
    """Lines that each part may have, and ``total`` and ``tests``."""
    rows = [line.split("#")[0].split() for line in BUDGET.read_text(encoding="utf-8").splitlines()]
    return {row[0]: int(row[1]) for row in rows if row}


def sizes() -> dict[str, int]:
    """Lines that each part has; ``total`` is of the product, ``code`` what is no docstring, comment or blank in it."""
    counts = {module: line_counts(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
    found = {}
    for part in dict.fromkeys(part for line in LINES for part in line):
        own = [module for module in MODULES if part_of(module) == part]
        found[part.removeprefix("layoutdoctor.")] = sum(counts[module][0] for module in own)
    tests = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    found["total"] = sum(lines for lines, _ in counts.values())
    found["code"] = sum(code for _, code in counts.values())
    found["tests"] = sum(len(text.splitlines()) for text in tests)
    return found


def main() -> int:
    """Prints the house beside its budget; with ``--check`` only what is over it, and 1 then."""
    budget, is_over = read_budget(), False
    found = sizes()
    only_over = "--check" in sys.argv[1:]
    if not only_over:
        print("part            lines (budget)")
    for part, lines in found.items():
        most_lines = budget.get(part, lines if part == "code" else 0)
        is_more = lines > most_lines
        is_over |= is_more
        if is_more or not only_over:
            note = "  over its budget: delete something, or raise .ci/house_budget.txt and say why" if is_more else ""
            print(f"{part:15} {lines:8} {most_lines:8}{note}")
    if not only_over:
        print(f"{len(MODULES)} modules")
        print(f"circle {circle() or 'none'}, imports upward {len(UPWARD)}, longest functions")
        longest = sorted((item for module in MODULES for item in functions_of(module)), reverse=True)
        for length, name in longest[:5]:
            print(f"  {length:4} {name}")
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
