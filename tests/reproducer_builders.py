"""Models written operation by operation as eager records them, and the diagnoses that hold them: for reproducers."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    a_comparison,
    a_diagnosis,
    a_kernel,
    a_node,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.records import Equivalence, Graph
from layoutdoctor.reports.reproducer.report import build_reproducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, FxNode, Trial

BUILTIN = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
IMAGES, FEATURES = (4, 3, 56, 56), (4, 64, 56, 56)


class Recorder:
    """An eager graph, written operation by operation."""

    def __init__(self) -> None:
        self.nodes: list[FxNode] = []
        self.numbers = itertools.count()

    def placeholder(self, shape: Sequence[int], *, weight: bool = False, last: bool = False, **changes: object) -> str:
        name = f"value_{next(self.numbers)}"
        layout = channels_last(tuple(shape)) if last else contiguous(tuple(shape))
        kind = "weight" if weight else "activation"
        self.nodes.append(a_placeholder(name, **{"layout": layout, "tensor": kind, **changes}))
        return name

    def call(self, target: str, arguments: str, shape: Sequence[int] = FEATURES, **changes: object) -> str:
        name = f"{target.split('.')[1] if '.' in target else target}_{next(self.numbers)}"
        known = {node.name for node in self.nodes}
        read = tuple(word for word in re.findall(r"\w+", arguments) if word in known)
        node = a_node(name, target, read, layout=contiguous(tuple(shape)), arguments=arguments)
        self.nodes.append(msgspec.structs.replace(node, **changes))
        return name

    def convolution(self, x: str, weight: Sequence[int], shape: Sequence[int], *, last: bool = False) -> str:
        name = self.placeholder(weight, weight=True, last=last)
        pair = "[1, 1]"
        return self.call(
            "aten.convolution.default", f"{x}, {name}, None, {pair}, {pair}, {pair}, False, [0, 0], 1", shape
        )

    def batch_norm(self, x: str, channels: int, shape: Sequence[int], *, training: bool = False) -> str:
        owned = ", ".join(self.placeholder((channels,)) for _ in range(4))
        node = self.call("aten.native_batch_norm.default", f"{x}, {owned}, {training}, 0.1, 1e-05", shape)
        return self.call("getitem", f"{node}, 0", shape, result_index=0)


def begun(shape: tuple[int, ...] = FEATURES, **changes: Any) -> tuple[Recorder, str]:
    """A recorder, and the name of the input that it has recorded."""
    recorder = Recorder()
    return recorder, recorder.placeholder(shape, **changes)


def a_chain(depth: int, *, last: bool = False) -> tuple[list[FxNode], str]:
    """Convolution, batch norm and ReLU, so many times."""
    recorder = Recorder()
    x = recorder.placeholder(IMAGES, last=last)
    for number in range(depth):
        x = recorder.convolution(x, (64, 64 if number else 3, 3, 3), FEATURES, last=last)
        x = recorder.call("aten.relu.default", recorder.batch_norm(x, 64, FEATURES))
    return recorder.nodes, x


def a_builtin(name: str, *names: str, nodes: Sequence[FxNode] = (), output: str = "", **changes: object) -> Trial:
    """A trial of a built-in configuration whose kernel list holds kernels of these names."""
    graphs = ()
    if nodes:
        graphs = (
            Graph(name="eager", direction="inference", decision=None, nodes=tuple(nodes), output_names=(output,)),
        )
    listed = tuple(a_kernel(kernel) for kernel in names)
    equal = Equivalence(status="equal", output_layouts=(contiguous(),))
    summary = kernels(count=len(listed), kernels=listed)
    return a_trial(
        name,
        **{"configuration": BUILTIN[name], "graphs": graphs, "kernels": summary, "equivalence": equal, **changes},
    )


def a_record(nodes: Sequence[FxNode], output: str, **changes: object) -> Diagnosis:
    """A diagnosis whose recommendation is verified: channels_last, 1.28 times faster."""
    trials = (
        a_builtin("eager", "reorder", "reorder", "aten::copy_", nodes=nodes, output=output),
        a_builtin("inductor", *("reorder",) * 4),
        a_builtin("inductor-channels-last", "reorder"),
    )
    return a_diagnosis(
        *trials,
        **{
            "subject": a_subject(inputs=(an_input(contiguous(IMAGES)),)),
            "comparison": a_comparison(
                a_ratio("eager", 0.6), a_ratio("inductor-channels-last", 1.28), fastest=("inductor-channels-last",)
            ),
            "recommendation": a_recommendation("inductor-channels-last"),
            **changes,
        },
    )


def script_of(nodes: Sequence[FxNode], output: str, **changes: object) -> str:
    reproducer = build_reproducer(a_record(nodes, output, **changes))
    assert reproducer.reason is None
    compile(reproducer.script, "reproducer", "exec")
    return reproducer.script


def reason_of(diagnosis: Diagnosis) -> str:
    reproducer = build_reproducer(diagnosis)
    compile(reproducer.script, "reproducer", "exec")
    assert not reproducer.is_runnable
    assert reproducer.reason is not None
    assert reproducer.script == f'raise SystemExit("{reproducer.reason}")\n'
    return reproducer.reason


def telling(script: str) -> str:
    """A script without what all scripts have alike; what is no script, as it is."""
    if not script.startswith('"""'):
        return script
    title, rest = script.split("\n", 1)[0], script.split("\nimport torch\n", 1)[1]
    model, rest = rest.split("\ndef run():", 1) if "\ndef run():" in rest else (rest, "")
    run, rest = rest.split("\ndef conversions", 1)
    recorded = rest[rest.index("\nrecorded = ") :].split("\ntimes, ", 1)[0]
    calls = [line for line in rest.splitlines() if "repeat=" in line or line.startswith("reproduced = ")]
    return "\n".join((title, model.strip(), f"def run():{run.rstrip()}", recorded.strip(), *map(str.strip, calls)))
