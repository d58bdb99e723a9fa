"""
Convolutions or matrix products run in a library's reference code, or in ATen's own fallback.

What it finds:
    Operations that oneDNN ran in a reference implementation (``ref:any``, ``gemm:ref``), and convolutions that no
    library took: ATen's ``slow_conv2d``, ``slow_conv3d``, ``slow_conv_dilated``, ``convolution_backward`` where it
    computes itself, on a GPU ``vol2col`` and MIOpen's ``naive_conv``. Where they take at least 10 % of the kernel time
    of the default, else of eager; told once.

Why it costs:
    These are there so that every case has an answer, not to be fast: the unfolding ones copy the input many times over,
    the reference loops do not vectorise. Between a few times and a thousand times slower were reported.

Example:
    A bfloat16 convolution on a processor with AVX2 only: oneDNN has no code for it there, and ATen unfolds. 1.6 s a
    call against 18 ms in float32.

What to do:
    Use a configuration that runs other code there, where one is named: some convolutions are left out for their size,
    such as small 3-D ones at batch 1, and frozen weights or a larger batch bring them back into the library. Where
    none does it is not the layout: try the other dtype (float32 where the processor has no bfloat16), another version
    of torch or of the library, and another shape. On a GPU ``torch.backends.cudnn.benchmark = True`` lets the library
    look for a better one.

When it is fine:
    Small problems for which torch chooses its own code on purpose, because the library's would take longer to start. A
    note, therefore, unless the code is a reference of the library, or a configuration in which other code runs was
    measured to be faster.

Source:
    pytorch/pytorch issues #183815 (bfloat16 on AVX2), #193951 (``ref:any`` in oneDNN 3.12.3, torch 2.14), #174051
    (``slow_conv_dilated3d``, torch 2.9 without cuDNN), #150514; ``use_mkldnn`` in aten/src/ATen/native/Convolution.cpp.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place
from layoutdoctor.examination.kernels.host import CONVOLUTION_BACKWARD
from layoutdoctor.examination.kernels.names import is_fallback
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import severity_of_gain, use_instead, verified_cure
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times, alternative_words
from layoutdoctor.words import ONEDNN_LOG, count_of, distinct, listing, op_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Kernel, Severity, Trial

_LEAST_SHARE = 0.10
_NAMED = 4
_REFERENCE = re.compile(r"(^|:)ref(:|$)")
_HEAVY = ("convolution", "deconvolution", "matmul", "inner_product")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    for trial, kernels in evidence.first_showing(evidence.main_or_eager(diagnosis), _dear_fallbacks):
        yield _finding(diagnosis, trial, kernels)


def _dear_fallbacks(trial: Trial) -> list[Kernel]:
    if trial.kernels is None:
        return []
    # Without oneDNN's log its primitives may run in there.
    own = {CONVOLUTION_BACKWARD} if ONEDNN_LOG in trial.kernels.sources else frozenset[str]()
    kernels = trial.kernels.kernels
    found = [kernel for kernel in kernels if _is_reference(kernel) or is_fallback(kernel) or kernel.name in own]
    share = evidence.share_of_kernels(trial, _seconds(found))
    return found if share is not None and share >= _LEAST_SHARE else []


def _seconds(kernels: list[Kernel]) -> float:
    return sum(kernel.seconds or 0.0 for kernel in kernels)


def _is_reference(kernel: Kernel) -> bool:
    return kernel.name in _HEAVY and _REFERENCE.search(kernel.implementation or "") is not None


def _severity(times: Times, trial: Trial, other: Trial | None, *, is_reference: bool) -> Severity:
    cure = verified_cure(times.diagnosis)
    if cure is not None and times.is_baseline(trial.name) and _runs_other_code(cure):
        return "error"
    by_gain = severity_of_gain(None if other is None else times.over(other.name, trial.name))
    return "warning" if is_reference else by_gain


def _suggestion(times: Times, trial: Trial, other: Trial | None, *, has_batch_of_one: bool) -> str:
    if other is not None:
        return use_instead(times, trial, other, "runs other code there")
    tries = ["another dtype", "another version of torch"]
    if has_batch_of_one:
        tries.insert(0, "a larger batch (small convolutions at batch 1 are left to this code on purpose)")
    if times.diagnosis.subject.device == "cuda":
        tries.append("torch.backends.cudnn.benchmark = True")
    clean = times.clean_trials(trial, _runs_other_code)
    if not clean:
        others = [one for one in evidence.own_trials(times.diagnosis) if one.name != trial.name and one.status == "ok"]
        if others and all(map(_dear_fallbacks, others)):
            return f"it is not the layout: compare {listing(tries)}"
        return f"compare {listing(['another memory format', *tries])}"
    try_else = listing(tries)
    measured = distinct(alternative_words(times, trial, one) for one in clean)
    told = listing([words for words in measured if words]) or "not timed"
    names = listing([evidence.shown(one.name) for one in clean], _NAMED)
    return f"{names} {'runs' if len(clean) == 1 else 'run'} other code there: {told}; compare also {try_else}"


def _is_of_one(kernel: Kernel, node: FxNode | None) -> bool:
    """Whether ATen convolves a batch of one sample on a CPU."""
    shape = () if node is None or node.layout is None else node.layout.shape
    return kernel.name.startswith("aten::") and len(shape) > 2 and shape[0] == 1


def _runs_other_code(one: Trial) -> bool:
    return one.kernels is not None and bool(one.kernels.seconds) and not _dear_fallbacks(one)


def _finding(diagnosis: Diagnosis, trial: Trial, kernels: list[Kernel]) -> Finding:
    kernels = sorted(kernels, key=lambda kernel: -(kernel.seconds or 0.0))
    nodes = [evidence.node_of(trial, kernel) for kernel in kernels]
    codes = distinct(_code(kernel) for kernel in kernels)
    dtypes = distinct(node.dtype for node in nodes if node is not None)
    modules = distinct(node.module for node in nodes if node is not None)
    cost = evidence.cost_words(trial, _seconds(kernels))
    dearest = next((node for node in nodes if node is not None), None)
    where = f" ({listing(modules, _NAMED)})" if modules else ""
    dtype = f" in {listing(dtypes)}" if dtypes else ""
    times = Times(diagnosis)
    other = times.clean_alternative(trial, _runs_other_code)
    return RULE.finding(
        trial.name,
        f"{count_of(len(kernels), 'call')}{where}{dtype} {'runs' if len(kernels) == 1 else 'run'} in code that is not "
        f"made to be fast ({listing(codes, _NAMED)}): {cost}",
        _suggestion(times, trial, other, has_batch_of_one=any(map(_is_of_one, kernels, nodes))),
        severity=_severity(times, trial, other, is_reference=any(map(_is_reference, kernels))),
        evidence=codes,
        at=Place(modules[0] if modules else None, dearest.location if dearest is not None else None, 1, None),
        seconds=_seconds(kernels),
    )


def _code(kernel: Kernel) -> str:
    """``oneDNN's ref:any``, or the name of the operation."""
    return f"oneDNN's {kernel.implementation}" if _is_reference(kernel) else op_words(kernel.name)


RULE = document_rule("LD305", "reference-kernel", check, __doc__)
