"""The wheel: built, installed into a folder of its own, and used from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
MODEL = """
import torch

model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
example_input = torch.randn(1, 3, 16, 16)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("layoutdoctor-*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    return folder


def run(installed: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed / "site")}
    code = "import layoutdoctor, sys; sys.stderr.write(layoutdoctor.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=installed, env=environment, capture_output=True, text=True, check=True
    )
    assert str(installed) in where.stderr
    ended = subprocess.run(
        [sys.executable, "-m", "layoutdoctor", *words],
        cwd=installed,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.thorough
def test_what_is_to_be_published_has_valid_metadata_and_no_test_in_it(installed: Path) -> None:
    (wheel,), (source,) = installed.glob("*.whl"), installed.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = Metadata.from_email(archive.read(name))
    with tarfile.open(source) as packed:
        folders = {name.split("/")[1] for name in packed.getnames()}

    assert (metadata.name, metadata.description_content_type) == ("layoutdoctor", "text/markdown")
    assert metadata.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"layoutdoctor", "skills", "README.md", "LICENSE", "pyproject.toml"} <= folders
    assert "tests" not in folders
    assert source.stat().st_size < 3e6


@pytest.mark.thorough
def test_an_installed_wheel_explains_a_rule_and_examines_a_trace(installed: Path) -> None:
    assert "round-trip-conversion" in run(installed, "explain", "LD101")
    trace = ROOT / "tests" / "traces" / "a100_alexnet.json.gz"
    page = installed / "report.html"
    assert "Layout conversions" in run(installed, "trace", str(trace), "--output", str(page))
    assert "</html>" in page.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_an_installed_wheel_diagnoses_a_model(installed: Path) -> None:
    (installed / "model.py").write_text(MODEL)
    assert "\nNothing was compared: eager, " in run(installed, "model.py", "--configurations", "eager", "--budget", "1")
