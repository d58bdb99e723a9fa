"""
Runs the notebooks in place and takes out of their outputs what differs from one machine or run to the next.

Run:
    python notebooks/run.py                 all notebooks
    python notebooks/run.py 02 03           those whose names begin so
    python notebooks/run.py --data          writes notebooks/data/ again, from a trace, recordings and a static diagnosis

Needs nbclient, nbformat, ipykernel and pandas (``pip install -e '.[test]'``); 01 and 04 need torch and a C++ compiler.
Each notebook gets a fresh kernel of the interpreter that runs this, whatever kernels are installed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
CELL_SECONDS = 300
MEASURED = "measured"
"""Tag of a cell whose output holds times, so that another run shows other numbers."""

# The kernel gives every cell a file of its own, named by a number, in a folder with the process's number in its name;
# reports show the file without the folder.
_CELL_FILE = re.compile(r"(?:[^\s\"'<>]*ipykernel_\d+/|(?:<path>|&lt;path&gt;)/)?\b\d{6,}\.py\b")
_SAVED_AT = "2026-11-21T12:00:00Z"
TRACE = "mi300_flux_vae_hip_graph_capture.json.gz"
RECORDED = "seed_autocast.inference.nvidia-h200"


def run_notebook(path: Path, folder: Path, root: Path = ROOT):
    """
    A notebook, executed in a fresh kernel.

    Args:
        path: The notebook.
        folder: Working folder of the kernel: ``notebooks`` of a checkout.
        root: Folder of the checkout, which is cut off the paths in the outputs.

    Returns:
        The notebook with new outputs, cleaned.

    Raises:
        CellExecutionError: A cell failed.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as settings:
        # Without folders to look in, the only kernel is that of this interpreter.
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            connection_file=str(Path(settings) / "kernel.json"),
        )
        client = NotebookClient(notebook, km=manager, timeout=CELL_SECONDS, record_timing=False)
        environment = {**os.environ, "IPYTHONDIR": settings, "COLUMNS": "100", "NO_COLOR": "1"}
        try:
            client.execute(env=environment, cwd=str(folder))
        finally:
            # Both leave sockets to the garbage collector, which would close them in the middle of something else.
            if client.kc is not None:
                client.kc.stop_channels()
                client.kc.context.destroy(linger=0)
            manager.context.destroy(linger=0)
    return clean_notebook(notebook, root)


def clean_notebook(notebook, root: Path):
    """
    The notebook without what is of one machine or run: the checkout's path, names of cell files, metadata.

    Args:
        notebook: An executed notebook; it is changed.
        root: Folder of the checkout.
    """
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            cell.outputs = [_clean(output, root) for output in _joined(cell.outputs)]
    return notebook


def _joined(outputs):
    """Neighbouring pieces of one stream as one output: where they were split depends on timing."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last is not None and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _clean(value, root: Path):
    if isinstance(value, str):
        without_root = value.replace(f"{root.resolve()}/", "").replace(f"{root}/", "")
        return _CELL_FILE.sub("(this notebook)", without_root)
    if isinstance(value, dict):
        for key in value:
            value[key] = _clean(value[key], root)
    return [_clean(part, root) for part in value] if isinstance(value, list) else value


def write_data() -> None:
    """Writes the saved diagnoses that the notebooks read."""
    folder = FOLDER / "data"
    folder.mkdir(exist_ok=True)
    gpu_diagnosis(ROOT / "tests" / "traces" / TRACE).save(folder / "mi300_flux_vae.json")
    measured_diagnosis(ROOT / "tests" / "recordings" / RECORDED).save(folder / "h200_conv3d_stack.json")
    static_diagnosis().save(folder / "half_precision_static.json")


def gpu_diagnosis(trace: Path):
    """
    The diagnosis of a recorded trace, without its longest lists: every kernel, and sums without a conversion.

    Args:
        trace: The recorded trace.
    """
    import msgspec

    import layoutdoctor

    diagnosis = layoutdoctor.examine_trace(trace)
    (trial,) = diagnosis.trials
    sums = ("possible", "beside", "moved")
    totals = tuple(one for one in trial.kernels.totals if one.conversion_count or one.kind in sums)
    summary = msgspec.structs.replace(trial.kernels, kernels=(), totals=totals)
    trial = msgspec.structs.replace(trial, kernels=summary)
    return msgspec.structs.replace(diagnosis, trials=(trial,), created_at=_SAVED_AT)


def measured_diagnosis(folder: Path):
    """The diagnosis of the recordings in a folder, with today's examination and rules."""
    from layoutdoctor.files.writing import RECORDING_SUFFIX
    from layoutdoctor.recording.saved import load_recording
    from layoutdoctor.run.recorded import diagnose_recordings

    return diagnose_recordings(tuple(map(load_recording, sorted(folder.glob(f"*{RECORDING_SUFFIX}")))))


def static_diagnosis():
    """The diagnosis of a small network in half precision for an H100 that is not there."""
    import msgspec
    import torch
    from torch import nn

    import layoutdoctor

    model = nn.Sequential(
        nn.Conv2d(3, 60, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(60, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=64),
        nn.Conv2d(64, 21, 1),
    ).half()
    diagnosis = layoutdoctor.diagnose(
        model, torch.zeros(8, 3, 64, 64, dtype=torch.half), configurations=["inductor"], target="cuda:90"
    )
    # What the graphs were lowered on says nothing about the H100.
    environment = msgspec.structs.replace(diagnosis.environment, platform=None, compiler=None, cpu_count=None)
    return msgspec.structs.replace(diagnosis, created_at=_SAVED_AT, environment=environment)


def main() -> int:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description="run the notebooks in place")
    parser.add_argument("names", nargs="*", help="beginnings of names; all notebooks where none is given")
    parser.add_argument("--data", action="store_true", help="write notebooks/data/ again first")
    arguments = parser.parse_args()
    if arguments.data:
        write_data()
    import nbformat

    chosen = [
        path
        for path in sorted(FOLDER.glob("*.ipynb"))
        if not arguments.names or any(path.name.startswith(name) for name in arguments.names)
    ]
    if not chosen:
        known = ", ".join(sorted(path.name for path in FOLDER.glob("*.ipynb")))
        print(
            f"error: no notebook begins with {' or '.join(arguments.names)}; expected one of {known}", file=sys.stderr
        )
        return 2
    for path in chosen:
        print(f"running {path.name}", file=sys.stderr)
        nbformat.write(run_notebook(path, FOLDER), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
