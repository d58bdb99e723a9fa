"""
Runs the capture tests and a probe of every capability with several versions of torch, one after the other, on the CPU.

    python .ci/version_matrix.py 2.7.1 2.11.0 2.13.0 2.15.0 [--keep]

Each version gets a virtual environment of its own outside the repository: torch with the triton that belongs to it,
what layoutdoctor needs, and what its capture tests need. A wheel with CUDA takes several GB and some minutes to
download; an environment is deleted once its version is done, unless ``--keep``. Tests and probe run in a copy of the
repository, so that it may be edited meanwhile.

Writes benchmarks/results/version_matrix.json and prints a table in Markdown, which docs/versions.md sums up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "version_matrix.json"
PROBE = Path(".ci") / "version_probe.py"
TESTS = (
    "tests/unit/capture",
    "tests/unit/measure/test_memory.py",
    "tests/unit/measure/test_profiling.py",
    "tests/unit/subjects/test_prepare.py",
)
NEEDED_BY_TESTS = ("pytest", "pytest-timeout", "hypothesis", "jsonschema")
"""Of the test extra: the rest is for reports, notebooks and style, which have nothing to do with torch."""

NEVER_INSTALLED = ("torch", "triton")
"""Of the dependencies: torch is installed first, by its version, and brings the triton that was built for it."""

LEFT_OUT_OF_THE_COPY = (".git", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "shared")
TEST_SECONDS = 2400
PROBE_SECONDS = 1200


def main() -> int:
    """Runs the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a version of torch, such as 2.13.0")
    parser.add_argument("--keep", action="store_true", help="do not delete the environments")
    options = parser.parse_args()
    # A run for one version does not throw the results of the others away.
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["versions"]
    with tempfile.TemporaryDirectory(prefix="layoutdoctor-matrix-") as directory:
        copy = Path(directory) / "repository"
        shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(*LEFT_OUT_OF_THE_COPY))
        for version in options.versions:
            environment = Path(tempfile.gettempdir()) / "layoutdoctor-version-matrix" / f"torch-{version}"
            known[version] = _results_of(version, environment, copy)
            ordered = {version: known[version] for version in sorted(known, key=_sortable)}
            # At once: a later version may fail to install.
            RESULTS.write_text(json.dumps({"versions": ordered}, indent=2) + "\n", encoding="utf-8")
            if not options.keep:
                shutil.rmtree(environment, ignore_errors=True)
    sys.stdout.write(f"{markdown_table(known)}\n")
    return int(any("error" in known[version] for version in options.versions))


def _sortable(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _results_of(version: str, environment: Path, copy: Path) -> dict[str, Any]:
    """What was found with one version; ``error`` says why nothing was."""
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    found: dict[str, Any] = {"date": today}
    _say(f"torch {version}: installing")
    error = _install(version, environment, copy)
    if error is not None:
        return {**found, "error": error}
    python = environment / "bin" / "python"
    _say(f"torch {version}: probing")
    with tempfile.TemporaryDirectory(prefix="layoutdoctor-probe-") as directory:
        answer = Path(directory) / "probe.json"
        status, text = _run([python, PROBE, answer], copy, PROBE_SECONDS)
        if not answer.is_file():
            return {**found, "error": f"the probe ended with {status}: {_last_line(text)}"}
        found |= json.loads(answer.read_text(encoding="utf-8"))
    _say(f"torch {version}: running the capture tests")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    status, text = _run(command, copy, TEST_SECONDS)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    found["tests"] = {"status": status, "summary": _last_line(text), "failed": sorted(set(failed))}
    _say(f"torch {version}: {_last_line(text)}")
    return found


def _install(version: str, environment: Path, copy: Path) -> str | None:
    """Makes an environment, or completes one that is there; why it could not be done, in a sentence."""
    python = environment / "bin" / "python"
    if not python.exists():
        environment.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    torch = [f"torch=={version}"]
    if _installed(python, "torch") is None:
        status, text = _run([python, *_PIP, *torch], copy, None)
        if status:
            return f"pip could not install torch {version}: {_last_line(text)}"
    here = _installed(python, "torch") or ""
    # A constraint, so that nothing brings another torch in.
    constraint = environment / "constraint.txt"
    constraint.write_text(f"torch=={here}\n", encoding="utf-8")
    wanted = [*_requirements(copy / "pyproject.toml"), *_triton(python, copy)]
    status, text = _run([python, *_PIP, "-c", constraint, *wanted], copy, None)
    if status:
        return f"pip could not install what layoutdoctor needs: {_last_line(text)}"
    after = _installed(python, "torch") or ""
    return None if after.split("+")[0] == version else f"asked for torch {version}, the environment has {after}"


_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")


def _triton(python: Path, copy: Path) -> list[str]:
    """A build of torch for the CPU names no triton: the one of constraints.txt is taken where the versions agree."""
    if _installed(python, "triton") is not None:
        return []
    pinned = dict(re.findall(r"^(torch|triton)==(\S+)", (copy / "constraints.txt").read_text(), re.MULTILINE))
    here = (_installed(python, "torch") or "").split("+")[0]
    return [f"triton=={pinned['triton']}"] if pinned.get("torch") == here and "triton" in pinned else []


def _installed(python: Path, package: str) -> str | None:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    ended = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return ended.stdout.strip() or None


def _requirements(pyproject: Path) -> list[str]:
    """The package's own dependencies and the few test tools, as pyproject.toml states them."""
    text = pyproject.read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    extra = re.search(r"^test = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    own = re.findall(r'"([^"]+)"', block[1]) if block else []
    tools = re.findall(r'"([^"]+)"', extra[1]) if extra else []
    return [line for line in own if _name(line) not in NEVER_INSTALLED] + [
        line for line in tools if _name(line) in NEEDED_BY_TESTS
    ]


def _name(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement, maxsplit=1)[0]


def _run(command: list[Any], folder: Path, seconds: int | None) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [str(part) for part in command]
    try:
        ended = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"took longer than {seconds} s"
    return ended.returncode, ended.stdout + ended.stderr


def _last_line(text: str) -> str:
    lines = [line.strip(" =") for line in text.splitlines() if line.strip(" =")]
    summary = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    return (summary or lines or ["nothing was printed"])[-1][:300]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def markdown_table(results: dict[str, Any]) -> str:
    """
    The results in Markdown: a row for each capability, a column for each version.

    Args:
        results: By version, as in the JSON file.
    """
    versions = sorted(results, key=_sortable)
    rows = [["", *versions], ["---"] * (len(versions) + 1)]
    rows.append(["build", *(_of(results[version], "build") for version in versions)])
    rows.append(["triton", *(_of(results[version], "triton") for version in versions)])
    names = dict.fromkeys(name for version in versions for name in results[version].get("capabilities", {}))
    remarks: list[str] = []
    for name in names:
        cells = []
        for version in versions:
            capability = results[version].get("capabilities", {}).get(name, {})
            cell = capability.get("works", "not run")
            if cell == "no":
                remarks.append(f"{name}, {version}: {capability.get('why')}")
                cell += f" [{len(remarks)}]"
            cells.append(cell)
        rows.append([name, *cells])
    facts = dict.fromkeys(name for version in versions for name in results[version].get("facts", {}))
    for name in facts:
        rows.append([name, *(results[version].get("facts", {}).get(name, "not run") for version in versions)])
    rows.append(["capture tests", *(_tests(results[version]) for version in versions)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([table, "", *(f"[{number}] {remark}" for number, remark in enumerate(remarks, start=1))])


def _of(result: dict[str, Any], key: str) -> str:
    return str(result.get("error") or result.get(key) or "none")


def _tests(result: dict[str, Any]) -> str:
    tests = result.get("tests")
    if tests is None:
        return "not run"
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", tests["summary"])
    return ", ".join(counts) or tests["summary"]


if __name__ == "__main__":
    sys.exit(main())
