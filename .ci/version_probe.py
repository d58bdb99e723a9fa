"""
What of layoutdoctor works with the torch that runs this: each capability tried on small models, on the CPU.

Run by ``version_matrix.py`` in an environment of its own, from a copy of the repository; writes JSON to the file named
on the command line: for each capability ``works`` (yes, partly, no) and ``why`` (what was seen, or what was missing).
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import layoutdoctor
from layoutdoctor.capture.compat import compile_settings, counts_backward_convolutions, triton_version
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.subjects.load import load_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Graph
    from layoutdoctor.diagnosis.trial import Trial

TARGET = "cuda:90"
CHANNELS = 64


class Chain(nn.Module):
    """Two convolutions with something between them that Inductor fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs both."""
        return self.second(self.first(x).relu()).relu()


class MissingError(Exception):
    """A capability that is not there; its text says what was seen instead."""


def expect(is_there: object, otherwise: str) -> None:
    """Raises MissingError where something was not recorded."""
    if not is_there:
        raise MissingError(otherwise)


def check(look: Callable[[], str]) -> dict[str, str]:
    """Whether a capability works, and what was seen; whatever the check raises is the reason why not."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return {"works": "yes", "why": look()}
    except MissingError as missing:
        return {"works": "no", "why": str(missing)}
    except BaseException as error:  # any failure is a result of the probe
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"works": "no", "why": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}


def _images() -> torch.Tensor:
    return torch.randn(2, CHANNELS, 24, 24)


_DIAGNOSES: dict[str, Callable[[], Diagnosis]] = {
    "inference": lambda: layoutdoctor.diagnose(
        Chain(),
        _images(),
        configurations=("eager", "inductor", "inductor-layout-opt-off", "inductor-freezing"),
        budget_seconds=1,
    ),
    "training": lambda: layoutdoctor.diagnose(
        Chain(), _images(), mode="training", configurations=("eager", "inductor"), budget_seconds=1
    ),
    "static inference": lambda: layoutdoctor.diagnose(Chain(), _images(), configurations="inductor", target=TARGET),
    "static training": lambda: layoutdoctor.diagnose(
        Chain(), _images(), mode="training", configurations="inductor", target=TARGET
    ),
}


@cache
def diagnosis(name: str) -> Diagnosis:
    """One of the diagnoses, which several checks look at."""
    return _DIAGNOSES[name]()


def trial(name: str, configuration: str) -> Trial:
    """A trial that ran, of one of the diagnoses."""
    found = next(t for t in diagnosis(name).trials if t.configuration.name == configuration)
    expect(found.failure is None, f"{found.failure.message if found.failure else ''}")
    return found


def graphs(name: str, configuration: str = "inductor") -> tuple[Graph, ...]:
    """The graphs of a trial."""
    found = trial(name, configuration).graphs
    expect(found, "no graph was recorded")
    return found


def _decision(graph: Graph) -> str:
    decision = graph.decision
    expect(decision is not None, f"the {graph.direction} graph has no decision card: {graph.hook_failure}")
    said = f"{graph.direction} {'on' if decision.applied else 'off'} ({decision.rule})"
    expect(decision.rule not in ("not-recorded", "not-said"), f"{said}: {decision.explanation}")
    return said


def decision_cards() -> str:
    """Each graph's decision with the rule behind it."""
    off = graphs("inference", "inductor-layout-opt-off")[0]
    cards = [_decision(graph) for graph in (*graphs("inference"), *graphs("training"))]
    expect(off.decision is not None and off.decision.rule == "config-off", f"switched off, it says {_decision(off)}")
    return ", ".join(cards)


def fx_graphs() -> str:
    """Nodes with layouts, source lines and modules."""
    graph = graphs("inference")[0]
    expect(graph.hook_failure is None, f"{graph.hook_failure}")
    found = [node for node in graph.nodes if "convolution" in node.target]
    expect(len(found) == 2, f"{len(found)} convolutions of 2")
    for what in ("layout", "location", "module", "called"):
        expect(all(getattr(node, what) for node in found), f"nodes have no {what}")
    return f"{len(graph.nodes)} nodes with layout, line, module and what the model called"


def buffers() -> str:
    """Inductor's buffers, their layouts and how their loops read."""
    graph = graphs("inference")[0]
    problems = {buffer.problem for buffer in graph.buffers if buffer.problem is not None}
    expect(graph.buffers and not problems, f"{len(graph.buffers)} buffers, {', '.join(sorted(problems))}")
    expect(any(b.is_user_output for b in graph.buffers), "which buffer the caller sees is not known")
    expect(any(b.accesses for b in graph.buffers), "no loop body was read")
    return f"{len(graph.buffers)} buffers, {len(graph.conversions)} conversions"


def kernel_names() -> str:
    """Names of the generated kernels and which buffers they write."""
    graph = graphs("inference")[0]
    expect(graph.kernel_names, "no kernel name was recorded")
    expect({b.kernel for b in graph.buffers} & set(graph.kernel_names), "no buffer knows its kernel")
    return ", ".join(graph.kernel_names[:2])


def forward_and_backward() -> str:
    """Training gives a forward and a backward graph."""
    directions = [graph.direction for graph in graphs("training")]
    expect(directions == ["forward", "backward"], f"graphs: {directions}")
    return "one graph each"


def freezing() -> str:
    """A frozen model's graph, with its weights packed."""
    graph = graphs("inference", "inductor-freezing")[0]
    packed = [buffer.kernel for buffer in graph.buffers if "mkldnn" in (buffer.kernel or "")]
    expect(packed, f"no packed convolution among {[b.kernel for b in graph.buffers]}")
    return f"{len(packed)} convolutions packed"


def kernel_list() -> str:
    """What ran, from the profiler, with generated kernels by their names."""
    summary = trial("inference", "inductor").kernels
    expect(summary is not None and summary.kernels, "no kernel list")
    generated = [kernel for kernel in summary.kernels if kernel.library == "inductor"]
    expect(generated, f"no generated kernel among {[k.name for k in summary.kernels]}")
    return f"{len(summary.kernels)} kernels, {len(generated)} of them generated; lacks: {list(summary.lacks) or 'none'}"


def onednn_log() -> str:
    """The primitives of oneDNN's verbose log, and its reorders."""
    environment = diagnosis("inference").environment
    expect(environment.onednn is not None, "no log was captured")
    summary = trial("inference", "eager").kernels
    expect(summary is not None and summary.conversions, f"oneDNN {environment.onednn}, but no reorder found in it")
    return f"oneDNN {environment.onednn} ({environment.onednn_isa}), {len(summary.conversions)} reorders"


def peak_memory() -> str:
    """Bytes of tensors alive at once."""
    measured = trial("inference", "inductor").measurement
    expect(measured is not None and measured.peak_memory_bytes, "the profiler recorded no allocation")
    least = 2 * CHANNELS * 24 * 24 * 4
    expect(measured.peak_memory_bytes >= least, f"{measured.peak_memory_bytes} bytes, less than one activation")
    return f"{measured.peak_memory_bytes} bytes"


def eager_graph() -> str:
    """Eager operations in forward and backward, with modules."""
    graph = graphs("training", "eager")[0]
    expect(graph.hook_failure is None, f"{graph.hook_failure}")
    backward = [node for node in graph.nodes if node.backward]
    expect(backward and any(node.module == "first" for node in backward), "backward operations have no module")
    return f"{len(graph.nodes)} operations, {len(backward)} of them in the backward"


def static(mode: str) -> str:
    """Lowering for a GPU that is not there."""
    lowered = graphs(f"static {mode}")
    expect(all(graph.buffers for graph in lowered), "a graph has no buffers")
    said = ", ".join(_decision(graph) for graph in lowered)
    names = [name for graph in lowered for name in graph.kernel_names]
    expect(names, f"{said}; no Triton kernel has a name")
    return f"{said}; {len(names)} Triton kernels"


def graph_breaks() -> str:
    """A graph break and its reason."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        torch._dynamo.graph_break()
        return y + 1

    with compile_settings({}), CompileCapture() as capture:
        torch.compile(broken)(torch.ones(3))
    expect(len(capture.graph_break_reasons) == 1, f"reasons: {capture.graph_break_reasons}")
    return capture.graph_break_reasons[0][:100]


def recompiles() -> str:
    """A compile because of another shape, and the guard that failed."""
    compiled = torch.compile(lambda x: x.sin() + 1)
    with compile_settings({}), CompileCapture() as capture:
        compiled(torch.ones(3))
        compiled(torch.ones(5))
    expect(len(capture.recompile_reasons) == 1, f"reasons: {capture.recompile_reasons}")
    return capture.recompile_reasons[0][:100]


def exported_program() -> str:
    """An exported program in a .pt2 file, loaded and run."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "chain.pt2"
        torch.export.save(torch.export.export(Chain().eval(), (_images(),)), str(path))
        loaded = load_target(str(path))
        output = loaded.model(*loaded.args, **loaded.kwargs)
    return f"{type(loaded.model).__name__}, output {list(output.shape)}"


def nothing_lost() -> str:
    """No note of any trial says that something was not recorded."""
    notes = [
        note
        for name in _DIAGNOSES
        for one in diagnosis(name).trials
        for note in (*one.notes, *(graph.hook_failure for graph in one.graphs if graph.hook_failure))
        if "not recorded" in note or "cannot hook" in note
    ]
    expect(not notes, "; ".join(dict.fromkeys(notes)))
    return "no note of a trial says that something was not recorded"


CAPABILITIES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("decision card", decision_cards),
    ("FX graph", fx_graphs),
    ("buffers and loops", buffers),
    ("kernel names", kernel_names),
    ("forward and backward", forward_and_backward),
    ("freezing", freezing),
    ("kernel list", kernel_list),
    ("oneDNN log", onednn_log),
    ("peak memory", peak_memory),
    ("eager graph", eager_graph),
    ("target, inference", lambda: static("inference")),
    ("target, training", lambda: static("training")),
    ("graph breaks", graph_breaks),
    ("recompiles", recompiles),
    (".pt2 file", exported_program),
    ("nothing lost", nothing_lost),
)


def _yes_or_no(answer: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[answer]


def main() -> int:
    """Tries everything and writes what was found."""
    torch.manual_seed(0)
    results = {}
    for name, look in CAPABILITIES:
        results[name] = found = check(look)
        sys.stderr.write(f"{name:<22} {found['works']:<4} {found['why']}\n")
    cuda = torch.version.cuda
    facts = {
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "triton": triton_version(),
        "build": "CPU" if cuda is None else f"CUDA {cuda}",
        "notes": list(diagnosis("inference").subject.notes),
        "facts": {
            "torch decides about backward graphs by their convolutions": _yes_or_no(counts_backward_convolutions()),
            "nested_compile_region": _yes_or_no(hasattr(torch.compiler, "nested_compile_region")),
        },
        "capabilities": results,
    }
    Path(sys.argv[1]).write_text(json.dumps(facts, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
