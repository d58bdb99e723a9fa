"""
The shape of the house in numbers: modules, lines, imports from line to line, circles, rooms with a single door.

``make house`` prints it; ``tests/test_architecture.py`` holds what must stay so. The standard library alone is needed.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "layoutdoctor"

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
    ("layoutdoctor.units",),
    ("layoutdoctor.errors", "layoutdoctor._version"),
)
# The only imports upward, within a function each: what users call on a record, and the package's own lazy names.
UPWARD = {
    ("layoutdoctor.diagnosis.records", "layoutdoctor.reports"),
    ("layoutdoctor.diagnosis.records", "layoutdoctor.subjects.prepare"),
}
TORCH_LINE = LINES.index(("layoutdoctor.workers",))

MODULES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def part_of(module: str) -> str:
    """The part of the house a module stands in: the package's own files each by itself."""
    return ".".join(module.split(".")[:2])


def line_of(module: str) -> int:
    """The module's line, from 0 at the top; -1 for a part that stands in no line."""
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


def circles(*, late: bool = False) -> list[list[str]]:
    """Groups of modules that import each other; imports within functions count only where asked for."""
    edges = {
        module: {name for name, is_late in imports_of(module).items() if name in MODULES and (late or not is_late)}
        for module in MODULES
    }
    while True:  # what imports nothing that is left stands in no circle
        free = [module for module, targets in edges.items() if not targets & set(edges)]
        if not free:
            break
        for module in free:
            del edges[module]
    left, found = set(edges), []
    while left:
        start = min(left)
        group = {start} | (_reach(start, edges) & {module for module in left if start in _reach(module, edges)})
        left -= group
        if len(group) > 1:
            found.append(sorted(group))
    return found


def _reach(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in edges[todo.pop()] & set(edges):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def line_counts(text: str) -> tuple[int, int]:
    """All lines of a file, and those that hold code: what is no docstring, comment or blank."""
    spare: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
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


def main() -> None:
    """Prints the house."""
    imports = {module: [name for name in imports_of(module) if name in MODULES] for module in MODULES}
    counts = {module: line_counts(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
    tests = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    doors = Counter(name for names in imports.values() for name in set(names))
    single = sorted(name for name, count in doors.items() if count == 1 and ".rules.ld" not in name)
    print(f"modules {len(MODULES)}, in the root {len(list(PACKAGE.glob('*.py')))}")
    print(f"lines {sum(lines for lines, _ in counts.values())}, of code {sum(code for _, code in counts.values())}")
    print(f"lines of tests {sum(len(text.splitlines()) for text in tests)}")
    print(f"circles {len(circles())}" + "".join(f"\n  {', '.join(group)}" for group in circles()))
    print("\npart            modules  lines   code  imports from")
    for part in dict.fromkeys(part for line in LINES for part in line):
        own = [module for module in MODULES if part_of(module) == part]
        parts = sorted({part_of(name) for module in own for name in imports[module]} - {part}, key=line_of)
        lines, code = (sum(counts[module][index] for module in own) for index in (0, 1))
        short = " ".join(name.removeprefix("layoutdoctor.") for name in parts)
        print(f"{part.removeprefix('layoutdoctor.'):15} {len(own):7} {lines:6} {code:6}  {short}")
    upward = sorted(
        f"{module} -> {name}{' (late)' if late else ''}"
        for module in MODULES
        for name, late in imports_of(module).items()
        if name in MODULES and line_of(name) < line_of(module)
    )
    print(f"\nupward {len(upward)}" + "".join(f"\n  {edge}" for edge in upward))
    print(f"\nimported by a single module, rules apart: {len(single)}")
    for name in single:
        print(f"  {name.removeprefix('layoutdoctor.'):45} {counts[name][0]:4}")
    print("\nlongest functions")
    for length, name in sorted((item for module in MODULES for item in functions_of(module)), reverse=True)[:10]:
        print(f"  {length:4} {name}")


if __name__ == "__main__":
    main()
