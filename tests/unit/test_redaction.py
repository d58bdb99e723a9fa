"""``redact``: what the user named becomes a number, everywhere the same one; free text is left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest
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
    a_node,
    a_pair,
    a_placeholder,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    kernels,
)
from golden.stories import STORIES

from layoutdoctor.diagnosis.answer import Account, AccountRow, Finding
from layoutdoctor.diagnosis.kernel import Kernel, Total
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.diagnosis.trial import Failure, Trial
from layoutdoctor.privacy import Surroundings, redact, scrub
from layoutdoctor.privacy.redaction import LEFT_OUT
from layoutdoctor.privacy.scrubbing import rewrite_record
from layoutdoctor.reports import render

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

HERE = Surroundings(home="/home/quinella", user="quinella", hosts=("brontosaur",), working_directory="/srv/work")
OWN = re.compile(r"tumou?r|lesion|zebrafish|hospital", re.IGNORECASE)


def a_secret_diagnosis() -> Diagnosis:
    """A model in which every name says what it is for, and sentences that contain these names."""
    place = a_location(12, "projects/hospital/tumor_net.py", "h = self.tumor_conv(lesion_scan)  # zebrafish study")
    conversion = a_conversion(
        "reorder 0",
        location=place,
        module="lesion_stem.tumor_conv",
        node="tumor_scan_op_1",
        cause="required by convolution lesion_stem.tumor_conv",
    )
    back = msgspec.structs.replace(conversion, id="reorder 1", op="zebrafish::tumor_op")
    graph = a_graph(
        a_decision(a_convolution("convolution", module="lesion_stem.tumor_conv", location=place)),
        nodes=(
            a_placeholder("p_lesion_stem_weight"),
            a_node("tumor_scan_op_1", "zebrafish.tumor_op.default", ("p_lesion_stem_weight",), module="lesion_stem"),
        ),
        not_understood=("custom operation zebrafish::tumor_op",),
    )
    return a_diagnosis(
        a_trial(
            "inductor",
            graphs=(graph,),
            kernels=kernels(
                conversion,
                back,
                kernels=(
                    Kernel(name="void at::native::tumor<float>()", seconds=1e-3, library="aten"),
                    Kernel(name="void hospital::tumor_conv_fwd<float, 4>(float*)", seconds=1e-3, library=None),
                    Kernel(name="triton_poi_fused_convolution_relu_0", seconds=1e-3, library="inductor"),
                ),
                totals=(
                    Total(kind="module", name="ZebrafishNet_0", count=1, seconds=1e-3),
                    Total(kind="module", name="Conv2d_26", count=1, seconds=1e-3),
                    Total(kind="step", name="ProfilerStep#3", count=1, seconds=1e-3),
                    Total(kind="operation", name="zebrafish::tumor_op", count=1, seconds=1e-3),
                ),
            ),
            redundant_pairs=(a_pair("reorder 0", "reorder 1", location=place, module="lesion_stem.tumor_conv"),),
            graph_break_reasons=("call to hospital_print at projects/hospital/tumor_net.py:12",),
            recompile_reasons=("L['self']._modules['lesion_stem']._modules['tumor_conv'].weight strides differ",),
        ),
        Trial(
            configuration=a_configuration("eager"),
            status="failed",
            failure=Failure(
                kind="run",
                message="TumorError: no patient of the zebrafish cohort",
                log='File "projects/hospital/x.py", line 3, in forward\n    self.lesion_stem(TumorNet)',
            ),
        ),
        subject=a_subject(name="tumor_net.py", model="TumorNet", inputs=(an_input(name="lesion_scan"),)),
        environment=an_environment(command="layoutdoctor tumor_net.py --output hospital.json"),
        comparison=a_comparison(),
        findings=(
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="warning",
                configuration="inductor",
                message="1 round trip around lesion_stem.tumor_conv (tumor_net.py:12) of TumorNet, 12 MiB at 34 GB/s",
                suggestion="convert lesion_stem once",
                location=place,
                module="lesion_stem.tumor_conv",
                evidence=("reorder 0", "tumor_scan_op_1"),
            ),
        ),
    )


def redacted() -> Diagnosis:
    return redact(a_secret_diagnosis(), HERE)


def test_no_name_of_the_users_own_is_left() -> None:
    rest = repr(msgspec.to_builtins(redacted())).replace(
        "void at::native::tumor<float>()", ""
    )  # a kernel of torch's, whatever its name

    assert OWN.search(repr(msgspec.to_builtins(scrub(a_secret_diagnosis(), HERE))))
    assert OWN.findall(rest) == []
    assert "patient" not in rest
    assert "cohort" not in rest


# Versions and devices, fixed words of our own and of torch, the kernels of known libraries, and a traced text, which
# was checked to be torch's.
KEPT = re.compile(
    r"Environment\.(?!command)|Diagnosis\.(created_at|layoutdoctor_version|stage_seconds)|Finding\.code|Layout\.format"
    r"|Kernel\.(name|problem|implementation|library)|Conversion\.(kernel|port|dtype|target_dtype)|Total\.(name|library)"
    r"|AccountRow\.\w+_kernels|Subject\.(device|target|parameter_formats)|InputTensor\.dtype|Failure\.kind|Decision\.rule"
    r"|Cure\.(name|answers|dtype)|Configuration\.\w+ key|FxNode\.(op|dtype)|Buffer\.dtype|KernelSummary\.sources"
    r"|Equivalence\.reference|TracedModel\.text|TracedTensor\.dtype"
)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["{} tumor", "{}.tumor", "tumor_{}", "{}/tumor.py", "Tumor{}", "{}::tumor"])
def test_a_name_planted_in_any_field_goes(form: str) -> None:
    left: set[str] = set()

    def note(text: str, place: str) -> str:
        if OWN.search(text) and not text.startswith(
            ("aten", "prims", "torch.", "_operator.")
        ):  # an overload of torch's
            left.add(place)
        return text

    for story in STORIES.values():
        diagnosis = rewrite_record(story(), lambda text, _: form.format(text))
        rewrite_record(redact(diagnosis, HERE), note)

    assert [place for place in left if not KEPT.match(place)] == []


def test_one_name_has_one_pseudonym_and_sentences_are_left_out() -> None:
    diagnosis = redacted()
    (finding,) = diagnosis.findings
    trial, failed = diagnosis.trials
    assert failed.failure is not None
    assert finding.location is not None

    assert finding.module == trial.kernel_summary.conversions[0].module == trial.redundant_pairs[0].module
    assert re.fullmatch(r"module_\d\.module_\d", finding.module or "")
    assert diagnosis.subject.name == finding.location.file == "file_1.py"
    assert diagnosis.subject.model == "class_1"
    assert (finding.code, finding.rule, finding.severity) == ("LD101", "round-trip-conversion", "warning")
    assert {finding.message, finding.suggestion, finding.location.code, failed.failure.message, failed.failure.log} == {
        LEFT_OUT
    }
    assert (trial.graph_break_reasons, trial.recompile_reasons) == ((LEFT_OUT,), (LEFT_OUT,))
    assert diagnosis.environment.command == f"layoutdoctor {LEFT_OUT}"


def test_a_field_that_is_added_tomorrow_is_left_out() -> None:
    class Later(msgspec.Struct, frozen=True):
        text: str

    assert redact(Later("anything"), HERE) == Later(LEFT_OUT)


def test_names_without_a_record_are_those_of_modules_and_of_targets() -> None:
    assert redact(("pipe.vae", "pipe.unet.0"), HERE) == ("module_1.module_2", "module_1.module_3.0")
    found = redact({"a/tumor.py": a_subject(name="tumor.py")}, HERE)
    assert [(key, subject.name) for key, subject in found.items()] == [("file_1.py", "file_1.py")]


def test_what_names_point_at_numbers_layouts_and_public_names_are_kept() -> None:
    before, trial = a_secret_diagnosis().trials[0], redacted().trials[0]
    (graph,) = trial.graphs
    names = {node.name for node in graph.nodes}

    assert set(graph.nodes[1].inputs) <= names
    assert trial.kernel_summary.conversions[0].node in names
    assert redacted().findings[0].evidence[1] in names
    assert graph.nodes[1].target.removesuffix(".default").replace(".", "::") == trial.kernel_summary.conversions[1].op
    assert trial.measurement == before.measurement
    assert trial.kernel_summary.conversions[0].source == before.kernel_summary.conversions[0].source
    assert [kernel.name for kernel in trial.kernel_summary.kernels] == [
        "void at::native::tumor<float>()",
        "kernel_1",
        "triton_poi_fused_kernel_2",
    ]
    names = [total.name for total in trial.kernel_summary.totals]
    assert re.fullmatch(r"module_\d module_\d ProfilerStep#3 name_\d+::name_\d+", " ".join(names))


def test_pseudonyms_are_numbered_by_appearance_alone() -> None:
    def renamed(match: re.Match[str]) -> str:
        new = f"q{match.group().lower()[::-1]}q"
        return new.title() if match.group()[0].isupper() else new

    other = rewrite_record(a_secret_diagnosis(), lambda text, _: OWN.sub(renamed, text))

    assert to_json(redact(other, HERE)).replace(b"qromutq", b"tumor") == to_json(redacted())


def test_a_redacted_record_is_readable_stays_so_and_has_the_same_findings() -> None:
    before, after = a_secret_diagnosis(), redacted()

    assert from_json(to_json(after)) == after == redact(after, HERE)
    assert [(f.code, f.severity) for f in after.findings] == [(f.code, f.severity) for f in before.findings]


def test_an_account_names_the_kernels_of_libraries_and_no_others() -> None:
    kernel = a_kernel("convolution", implementation="brgconv:avx512_core")
    named = ("convolution brgconv:avx512_core", "tumor_kernel")
    row = AccountRow(kind="layout", seconds=1.0, slower_kernels=named, source="void tumor_kernel()")
    account = Account(slower="inductor", faster="eager", slower_seconds=2.0, faster_seconds=1.0, rows=(row,))
    diagnosis = a_diagnosis(a_trial(kernels=kernels(kernels=(kernel,))), accounts=(account,))

    result = redact(diagnosis, HERE).accounts[0].rows[0]

    assert result.slower_kernels == ("convolution brgconv:avx512_core", "kernel_1")
    assert result.source == LEFT_OUT


def test_files_of_torch_and_python_stay_and_others_get_numbers() -> None:
    public = ("site-packages/torch/nn/modules/conv.py", "lib/python3.11/ast.py", "<frozen importlib>")
    own = ("tumor.py", "<path>/tumor.py", "site-packages/tumornet/a.py", "torch.py", "src/torch/tumor.py")
    for path in (*public, *own):
        trial = a_trial("eager", kernels=kernels(a_conversion(location=a_location(3, path))))
        diagnosis = a_diagnosis(trial, subject=a_subject(name="net"), environment=an_environment(command=None))
        summary = redact(diagnosis, HERE).trials[0].kernel_summary
        location = summary.conversions[0].location
        assert location is not None
        assert location.file == (path if path in public else "file_2.py")  # the subject is the first


def test_names_of_configurations_are_kept_if_they_are_built_in() -> None:
    names = ("inductor-channels-last+flat-conv3d", "aot-inductor", "tumor", "inductor-tumor")
    diagnosis = a_diagnosis(*(a_trial(configuration=a_configuration(name, backend="inductor")) for name in names))

    found = [trial.name for trial in redact(diagnosis, HERE).trials]

    assert found == [*names[:2], "configuration_1", "configuration_2"]


@pytest.mark.parametrize("story", sorted(STORIES))
def test_a_redacted_story_can_be_rendered_and_redacted_again(story: str) -> None:
    once = redact(STORIES[story](), HERE)

    assert redact(once, HERE) == once
    for report_format in ("text", "markdown", "html", "sarif"):
        assert render(once, report_format)
