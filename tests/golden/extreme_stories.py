"""Stories at the edges: hundreds of findings, nothing run, crashes, a GPU that is not there, names made to do harm."""

from __future__ import annotations

from builders import (
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_pair,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Failure, Finding, Severity, Trial

FINDING_COUNT = 160
HOSTILE = "</script><img src=x onerror=alert(1)> | `x` *b* ]]> -->\x1b[31m\u202e\n# h ${y} {{ z }} \"q\" 'r' \\ & é"
"""Ends a script, a cell, a code span, a CDATA section, a comment; colours, reverses, starts a heading, interpolates."""

SEGFAULT_LOG = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f3a2c5ff740 (most recent call first):
  File "site-packages/torch/_ops.py", line 1208 in __call__
  File "site-packages/torch/_inductor/output_code.py", line 613 in __call__
  File "model.py", line 9 in forward
  File "site-packages/torch/nn/modules/module.py", line 1789 in _call_impl

Extension modules: numpy._core._multiarray_umath, torch._C (total: 26)"""
HANG_LOG = """\
Timeout (0:30:00)!
Thread 0x00007f3a2c5ff740 (most recent call first):
  File "lib/python3.11/subprocess.py", line 1201 in communicate
  File "site-packages/torch/_inductor/cpp_builder.py", line 533 in run_compile_cmd
  File "site-packages/torch/_inductor/codecache.py", line 2870 in load"""


def many_findings() -> Diagnosis:
    """A deep network with hundreds of findings of every severity."""
    kinds: tuple[tuple[str, str, Severity], ...] = (
        ("LD101", "round-trip-conversion", "error"),
        ("LD104", "layout-breaker", "warning"),
        ("LD501", "user-contiguous-call", "warning"),
        ("LD103", "weight-converted-every-call", "note"),
    )
    findings = []
    for number in range(FINDING_COUNT):
        code, rule, severity = kinds[4 * number // FINDING_COUNT]
        findings.append(
            Finding(
                code=code,
                rule=rule,
                severity=severity,
                configuration="inductor",
                message=f"finding {number} of a deep network: the layer converts its activation there and back",
                suggestion="give the model channels_last input",
                location=a_location(100 + number, f"blocks/stage{number // 50}.py"),
                module=f"stage{number // 50}.{number % 50}.conv",
                seconds=(FINDING_COUNT - number) * 1e-6,
                bytes_moved=6_422_528,
                evidence=(f"reorder {number % 40}",),
            )
        )
    conversions = tuple(a_conversion(f"reorder {i}", seconds=5e-4, module=f"stage0.{i}.conv") for i in range(40))
    pairs = tuple(
        a_pair(f"reorder {2 * i}", f"reorder {2 * i + 1}", seconds=1e-3, module=f"stage0.{2 * i}.conv")
        for i in range(20)
    )
    cards = tuple(a_convolution(f"convolution_{i}", module=f"stage0.{i}.conv", channels_last=False) for i in range(40))
    decision = a_decision(*cards, applied=False, rule="config-off", explanation="layout optimization is switched off")
    return a_diagnosis(
        a_trial(
            "inductor", graphs=(a_graph(decision),), kernels=kernels(*conversions, seconds=60e-3), redundant_pairs=pairs
        ),
        a_trial("inductor-channels-last"),
        subject=a_subject(name="deep.py", convolution_module_count=40),
        comparison=a_comparison(a_ratio("inductor-channels-last", 1.01)),
        recommendation=a_recommendation(),
        findings=tuple(findings),
    )


def not_run(name: str, message: str, *, is_static: bool = False) -> Trial:
    return Trial(
        configuration=a_configuration(name),
        status="skipped",
        failure=Failure(kind="target" if is_static else "prepare", message=message),
        is_static=is_static,
    )


def empty() -> Diagnosis:
    """Stopped before the first configuration: nothing was run at all."""
    return a_diagnosis(
        *(not_run(name, "interrupted before its turn") for name in ("eager", "inductor", "inductor-channels-last")),
        interrupted="interrupted from the keyboard",
    )


def crashed_and_timed_out() -> Diagnosis:
    """One configuration killed its process, another one never ended; the rest was compared, and one is faster."""
    crashed = Trial(
        configuration=a_configuration("inductor-layout-opt-off"),
        status="crashed",
        failure=Failure(
            kind="run",
            message="the process died of signal 11 (SIGSEGV, segmentation fault) while it ran",
            log=SEGFAULT_LOG,
        ),
    )
    timed_out = Trial(
        configuration=a_configuration("inductor-layout-opt-on"),
        status="timed_out",
        failure=Failure(
            kind="compile",
            message="it took longer than 1800 s, the limit for one configuration, while it was compiled",
            log=HANG_LOG,
        ),
    )
    conversions = tuple(a_conversion(f"reorder {i}", seconds=5e-4) for i in range(2))
    measured = {"decision": a_decision(a_convolution("convolution", module="body.0.0"))}
    return a_diagnosis(
        a_trial("eager", measurement=a_measurement(*(12e-3, 12.1e-3, 11.9e-3) * 20, compile_seconds=None)),
        a_trial("inductor", graphs=(a_graph(**measured),), kernels=kernels(*conversions, seconds=9.8e-3)),
        crashed,
        timed_out,
        a_trial(
            "inductor-channels-last",
            measurement=a_measurement(*(8e-3, 8.1e-3, 7.9e-3) * 20),
            graphs=(a_graph(**measured),),
            kernels=kernels(seconds=7.8e-3),
        ),
        comparison=a_comparison(
            a_ratio("eager", 0.83), a_ratio("inductor-channels-last", 1.25), fastest=("inductor-channels-last",)
        ),
        recommendation=a_recommendation(
            "inductor-channels-last",
            speedup=a_speedup(1.25),
            how="model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)",
            verified=True,
        ),
    )


def lowered(name: str, *conversions: Conversion, **changes: object) -> Trial:
    decision = a_decision(rule="weighted-flops", explanation="the weighted flops predict no slowdown")
    fields = {"kernels": None, "measurement": None, "equivalence": None, "is_static": True}
    return a_trial(name, **(fields | {"graphs": (a_graph(decision, conversions=conversions),)} | changes))


def static_target() -> Diagnosis:
    """Lowered for a GPU that is not there: decisions, conversions and bytes, no time."""

    def moved(number: int, **changes: object) -> Conversion:
        there = {"source": contiguous(), "target": channels_last(), "direction": "to_channels_last"}
        fields = {"owner": "compiler", "node": "convolution", "seconds": None, "bytes_moved": 6_422_528}
        return a_conversion(f"graph 0 conversion {number}", **(fields | there | changes))

    back = {"source": channels_last(), "target": contiguous(), "direction": "to_contiguous"}
    pair = a_pair("graph 0 conversion 0", "graph 0 conversion 1", evidence="graph", graph="graph 0", seconds=None)
    return a_diagnosis(
        not_run("eager", "eager runs no compiler: nothing to lower for a GPU that is not there", is_static=True),
        lowered("inductor", moved(0), moved(1, **back), moved(2, fused=True), redundant_pairs=(pair,)),
        lowered("inductor-channels-last"),
        subject=a_subject(device="cuda", target="cuda:90"),
        findings=(
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="warning",
                configuration="inductor",
                message="1 round trip: contiguous -> channels_last -> contiguous around relu, 12.2 MiB moved",
                location=a_location(),
                module="body.1.0",
                bytes_moved=12_845_056,
                evidence=("graph 0 conversion 0", "graph 0 conversion 1"),
            ),
        ),
    )


def hostile_names() -> Diagnosis:
    """Every name from outside is made to end a script, a table, a code span or a string, and to start something."""
    place = a_location(1, HOSTILE, HOSTILE)
    names = {"location": place, "module": HOSTILE}
    nodes = (
        a_placeholder(f"x {HOSTILE}"),
        a_node(f"conv {HOSTILE}", HOSTILE, (f"x {HOSTILE}",), arguments=HOSTILE, called=HOSTILE, **names),
        a_node(f"relu {HOSTILE}", "aten.relu.default", (f"conv {HOSTILE}",), arguments=f"conv {HOSTILE}", **names),
    )
    fields = {"kernel": HOSTILE, "op": HOSTILE, "cause": HOSTILE, "graph": "graph 0", **names}
    conversions = (
        a_conversion(f"a {HOSTILE}", node=f"conv {HOSTILE}", required_by=(f"relu {HOSTILE}",), **fields),
        a_conversion(f"b {HOSTILE}", node=f"relu {HOSTILE}", **fields),
    )
    decision = a_decision(a_convolution(f"conv {HOSTILE}", **names), rule=HOSTILE, explanation=HOSTILE, log=HOSTILE)
    pair = a_pair(f"a {HOSTILE}", f"b {HOSTILE}", between=(HOSTILE,), proof=HOSTILE, graph="graph 0", **names)
    failed = Trial(
        configuration=a_configuration("inductor-layout-opt-on"),
        status="failed",
        failure=Failure(kind="compile", message=HOSTILE, log=HOSTILE),
    )
    return a_diagnosis(
        a_trial(
            "inductor",
            graphs=(a_graph(decision, nodes=nodes, not_understood=(HOSTILE,), hook_failure=HOSTILE),),
            kernels=kernels(*conversions, kernels=(a_kernel(HOSTILE, op=HOSTILE),), lacks=(HOSTILE,)),
            redundant_pairs=(pair,),
            notes=(HOSTILE,),
            graph_break_reasons=(HOSTILE,),
        ),
        failed,
        subject=a_subject(name=HOSTILE, model=HOSTILE, notes=(HOSTILE,), inputs=(an_input(name=HOSTILE),)),
        environment=an_environment(torch=HOSTILE, settings={HOSTILE: HOSTILE}, command=HOSTILE),
        comparison=a_comparison(),
        recommendation=a_recommendation(how=HOSTILE, reason=HOSTILE),
        interrupted=HOSTILE,
        findings=(
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="warning",
                configuration="inductor",
                message=HOSTILE,
                suggestion=HOSTILE,
                evidence=(f"a {HOSTILE}", HOSTILE),
                **names,
            ),
        ),
    )


EXTREME_STORIES = {
    story.__name__: story for story in (crashed_and_timed_out, empty, hostile_names, many_findings, static_target)
}
