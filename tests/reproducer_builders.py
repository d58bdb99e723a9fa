"""A traced model, and the diagnosis that holds it: for reproducers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders import (
    a_comparison,
    a_diagnosis,
    a_kernel,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    an_input,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.layout import contiguous_stride
from layoutdoctor.diagnosis.trial import TracedModel, TracedTensor

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

BUILTIN = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
IMAGES = (4, 3, 56, 56)
TEXT = """\
def forward(self, w0, w1, x0):
    conv2d = torch.conv2d(x0, w0, None, (1, 1), (1, 1), (1, 1), 1);  x0 = w0 = None
    group_norm = torch.nn.functional.group_norm(conv2d, 2, w1, None, 1e-05);  conv2d = w1 = None
    relu = torch.nn.functional.relu(group_norm, inplace = False);  group_norm = None
    return (relu,)"""


def a_traced_tensor(*shape: int, requires_grad: bool = False) -> TracedTensor:
    return TracedTensor(shape=shape, stride=contiguous_stride(shape), dtype="float32", requires_grad=requires_grad)


TRACED = TracedModel(
    text=TEXT,
    weights=(a_traced_tensor(8, 3, 3, 3, requires_grad=True), a_traced_tensor(8, requires_grad=True)),
    inputs=(a_traced_tensor(*IMAGES),),
)


def a_builtin(name: str, *names: str, **changes: object) -> Trial:
    """A trial of a built-in configuration whose kernel list holds kernels of these names."""
    listed = tuple(a_kernel(kernel) for kernel in names)
    summary = kernels(count=len(listed), kernels=listed)
    return a_trial(name, **{"configuration": BUILTIN[name], "kernels": summary, **changes})


def a_record(**changes: object) -> Diagnosis:
    """A diagnosis whose recommendation is verified: channels_last, 1.28 times faster."""
    trials = (
        a_builtin("eager", "reorder", "reorder", "aten::copy_"),
        a_builtin("inductor", *("reorder",) * 4, traced=TRACED),
        a_builtin("inductor-channels-last", "reorder"),
    )
    ratios = a_ratio("eager", 0.6), a_ratio("inductor-channels-last", 1.28)
    return a_diagnosis(
        *trials,
        **{
            "subject": a_subject(inputs=(an_input(contiguous(IMAGES)),)),
            "comparison": a_comparison(*ratios, fastest=("inductor-channels-last",)),
            "recommendation": a_recommendation("inductor-channels-last"),
            **changes,
        },
    )
