"""
The package's own source: nothing in it unpickles, evaluates, runs a shell or guesses a temporary name.

What does so all the same is named below, with the reason. A reason that no longer applies fails as well.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PACKAGE = Path(__file__).parents[2] / "layoutdoctor"
MODULES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}

FORBIDDEN_MODULES = frozenset(
    "pickle cPickle _pickle cloudpickle dill marshal shelve joblib yaml xml lxml code codeop runpy jsonpickle "
    "imp telnetlib ftplib http urllib.request requests socket socketserver fsspec pty".split()
)
FORBIDDEN_CALLS = frozenset(
    "eval exec compile __import__ os.system os.popen tempfile.mktemp os.tempnam torch.load torch.jit.load "
    "torch.package.PackageImporter torch.hub.load torch.ops.load_library torch.classes.load_library sympy.sympify "
    "sympy.parse_expr numpy.load np.load pandas.read_pickle pd.read_pickle pd.eval pandas.eval importlib.import_module "
    "importlib.reload subprocess.run subprocess.Popen subprocess.call subprocess.check_call subprocess.check_output "
    "subprocess.getoutput subprocess.getstatusoutput os.execv os.execve os.execvp os.execl os.spawnv os.posix_spawn "
    "pkgutil.resolve_name torch.export.load torch.utils.model_zoo.load_url torch._inductor.aoti_load_package "
    "setattr_static marshal.loads zipfile.ZipFile.extractall shutil.unpack_archive tarfile.open".split()
)
FORBIDDEN_METHODS = frozenset({"extractall", "extract", "enable_load_extension", "load_extension", "executescript"})

# (file, what) -> why it may stand there.
REASONS = {
    ("subjects/cures.py", "exec"): "runs the lines of a cure of its own; none that was read from a record",
    ("subjects/cures.py", "compile"): "compiles the lines of a cure of its own",
    ("subjects/load.py", "exec"): "runs the TARGET, as the user asked",
    ("subjects/load.py", "compile"): "compiles the TARGET, as the user asked",
    ("subjects/load.py", "importlib.import_module"): "imports the TARGET package.module, as the user asked",
    ("subjects/load.py", "torch.export.load"): "loads the TARGET model.pt2, as the user asked",
    ("subjects/prepare.py", "torch._inductor.aoti_load_package"): "loads a package that this process has compiled",
    ("capture/compat.py", "pkgutil.resolve_name"): "looks up names of torch in a table of its own",
    ("capture/warming.py", "importlib.import_module"): "imports modules of torch by their names",
    ("state/switches.py", "importlib.import_module"): "the caller's own settings, by transport.py",
    ("subjects/zoo.py", "importlib.import_module"): "imports timm, torchvision and the like, as the user asked",
    ("recording/nsys.py", "subprocess.run"): "nsys export of the report that the user named; no shell",
    ("measure/environment.py", "subprocess.run"): "asks the C++ compiler and nvidia-smi; no shell",
    ("privacy/paths.py", "socket"): "the machine's own name, to take it out of reports; nothing is connected",
    ("measure/equivalence.py", "torch.load"): "tensors of the reference, by a private directory, with weights_only",
    ("workers/launcher.py", "subprocess.Popen"): "starts our own launcher by sys.executable; no shell",
    ("workers/messages.py", "socket"): "socket pairs between our own processes; nothing is connected",
    ("workers/program.py", "subprocess.Popen"): "starts our own process by sys.executable; no shell",
    ("run/launcher.py", "importlib.import_module"): "imports a module of torch by its name",
    ("run/program.py", "runpy"): "runs the script of `layoutdoctor run`, as the user asked",
    ("commands/reproducing.py", "subprocess.Popen"): "the reproducer of the diagnosis just made, by sys.executable",
    ("fleet/sources.py", "fsspec"): "opens the URLs that the user named, and no other",
    ("fleet/sources.py", "tarfile.open"): "reads one member after the other as a stream; none is unpacked by its name",
    ("subjects/transport.py", "pickle"): "the caller's own live model, to a child process, by a private directory",
    ("subjects/transport.py", "torch.load"): "its tensors, by a private directory, with weights_only",
    ("subjects/transport.py", "cloudpickle"): "the caller's own live model, to a child process, by a private directory",
}


def found_in(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if _is_forbidden_module(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_forbidden_module(node.module):
            found.add(node.module)
        elif isinstance(node, ast.Call):
            found.update(_forbidden_call(node))
    return found


def _is_forbidden_module(name: str) -> bool:
    return name in FORBIDDEN_MODULES or name.partition(".")[0] in FORBIDDEN_MODULES


def _forbidden_call(call: ast.Call) -> set[str]:
    name = ast.unparse(call.func)
    if name == "re.compile":
        return set()
    problems = {name} & FORBIDDEN_CALLS
    if name.rpartition(".")[2] in FORBIDDEN_METHODS:
        problems.add(name.rpartition(".")[2])
    for keyword in call.keywords:
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False):
            problems.add("shell=True")
    return problems


def test_nothing_runs_what_it_reads_but_for_a_reason_that_applies() -> None:
    assert {(module, what) for module in MODULES for what in found_in(module)} == set(REASONS)


def test_what_is_forbidden_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "module.py"
    monkeypatch.setitem(MODULES, "module.py", path)
    for source in (
        "import xml.etree.ElementTree as x",
        "from yaml import load",
        "run(words, shell=True)",
        "a.extract()",
    ):
        path.write_text(source)
        assert found_in("module.py"), source
