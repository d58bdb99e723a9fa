"""
The notebooks run, and what is stored in them is what they print.

Each is executed in a fresh kernel, in a copy of the checkout's notebooks. Cells tagged ``measured`` hold times, or what
depends on the processor; all others must print the stored output again. ``python notebooks/run.py`` writes them.
"""

from __future__ import annotations

import gc
import getpass
import importlib.util
import re
import shutil
import socket
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pandas
import pytest

import layoutdoctor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
WITH_TORCH = ("01_first_diagnosis.ipynb", "04_questions_from_the_forum.ipynb")
MOST_BYTES = 300_000
# With other versions the tables may look different, or Inductor decide differently: the notebooks must run there too.
STORED_WITH = {"pandas": "3.", "torch": "2.13."}

pytestmark = [
    # Jupyter's own: where it looks for its files, its loop, sockets that it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_core.*"),
    pytest.mark.filterwarnings("ignore:Jupyter is migrating its paths:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def load_runner() -> ModuleType:
    specification = importlib.util.spec_from_file_location("notebooks_run", FOLDER / "run.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def read(name: str) -> Any:
    return nbformat.read(FOLDER / name, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts_of(value: Any) -> list[str]:
    """Every string within an output."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in texts_of(part)]


def is_stored_version(name: str) -> bool:
    import torch

    versions = {"pandas": pandas.__version__, "torch": torch.__version__ if name in WITH_TORCH else ""}
    return all(version.startswith(STORED_WITH[of]) for of, version in versions.items() if version)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a notebook needs of a checkout, in a folder that may be written to."""
    for folder in ("notebooks", "examples", "tests/traces"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture(autouse=True)
def _sockets_of_kernels() -> Iterator[None]:
    """nbclient leaves its sockets to the garbage collector, which would warn in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_notebook_is_valid_small_and_was_run_from_top_to_bottom(name: str) -> None:
    notebook = read(name)

    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert (FOLDER / name).stat().st_size < MOST_BYTES
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags"}
    assert {tag for cell in notebook.cells for tag in cell.metadata.get("tags", ())} <= {load_runner().MEASURED}
    assert f"({name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_output_holds_no_failure_no_script_no_machine_and_no_absolute_path(name: str) -> None:
    names = [str(Path.home()), str(ROOT), socket.gethostname(), f"/{getpass.getuser()}/"]

    for cell in code_cells(read(name)):
        assert not [output for output in cell.outputs if "error" in output.output_type or "stderr" in output.values()]
        for text in texts_of(cell.outputs):
            assert not re.search("<script|javascript:|<iframe", text), text
            assert not re.search(r"(?<![\w./:-])/(?:home|root|tmp|work|usr|opt|var|mnt|Users|private)\b", text), text
            assert not re.search(r"ipykernel_\d+|\b\d{6,}\.py\b|[A-Za-z]:\\\\", text), text
            assert not [one for one in names if len(one) > 3 and one in text]


@pytest.mark.parametrize("name", [*NOTEBOOKS, "README.md"])
def test_links_within_the_checkout_lead_somewhere(name: str) -> None:
    path = FOLDER / name
    text = (
        path.read_text(encoding="utf-8")
        if path.suffix == ".md"
        else "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    )

    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")]
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.compile] * (name in WITH_TORCH)) for name in NOTEBOOKS]
)
def test_a_notebook_runs_and_prints_what_is_stored(name: str, checkout: Path) -> None:
    stored = code_cells(read(name))

    # Raises where a cell fails, with the cell and its traceback.
    fresh = code_cells(load_runner().run_notebook(checkout / "notebooks" / name, checkout / "notebooks", checkout))

    assert [cell.source for cell in fresh] == [cell.source for cell in stored]
    for old, new in zip(stored, fresh, strict=True):
        assert kinds_of(new) == kinds_of(old), new.source
        if is_stored_version(name) and "measured" not in old.metadata.get("tags", ()):
            assert new.outputs == old.outputs, f"run python notebooks/run.py {name}, and review: {new.source}"


def kinds_of(cell: Any) -> list[tuple[str, ...]]:
    return [(output.output_type, output.get("name", ""), *sorted(output.get("data", ()))) for output in cell.outputs]


def test_the_stored_gpu_diagnosis_says_what_the_trace_says() -> None:
    runner = load_runner()
    trace = ROOT / "tests" / "traces" / runner.TRACE

    stored = layoutdoctor.load(FOLDER / "data" / "mi300_flux_vae.json")
    whole = layoutdoctor.examine_trace(trace)

    assert stored == runner.gpu_diagnosis(trace)
    assert str(stored) == str(whole)
    assert stored.findings == whole.findings == layoutdoctor.run_rules(stored)
    assert (FOLDER / "data" / "mi300_flux_vae.json").stat().st_size < MOST_BYTES


@pytest.mark.compile
def test_the_stored_static_diagnosis_can_be_made_again() -> None:
    stored = layoutdoctor.load(FOLDER / "data" / "half_precision_static.json")
    if not is_stored_version(WITH_TORCH[0]):
        pytest.skip(f"the diagnosis was stored with {STORED_WITH}")

    again = load_runner().static_diagnosis()

    assert again.findings == stored.findings
    assert again.trials == stored.trials
