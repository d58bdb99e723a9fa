"""``redact``: what the user named becomes a number, everywhere the same one; what is public stays."""

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
from loops import for_each

from layoutdoctor.diagnosis.answer import Account, AccountRow, Finding
from layoutdoctor.diagnosis.kernel import Kernel, Total
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.diagnosis.trial import Failure, Trial
from layoutdoctor.privacy import Surroundings, redact, scrub
from layoutdoctor.privacy.scrubbing import rewrite_record
from layoutdoctor.rules import run_rules

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


# Versions and devices, fixed codes, the kernels of known libraries, and a traced text, which was checked to be torch's.
KEPT = re.compile(
    r"Environment\.(?!command)|Diagnosis\.(created_at|layoutdoctor_version)|Finding\.(code|rule)|Layout\.|TracedModel\.text"
    r"|Kernel\.(name|problem|implementation)|Conversion\.kernel|Total\.name|AccountRow\.\w+_kernels"
)


@pytest.mark.thorough
@for_each("form", ["{} tumor", "{}.tumor", "tumor_{}", "{}/tumor.py", "Tumor{}", "{}::tumor"])
def test_a_name_planted_in_any_field_goes(form: str) -> None:
    left: set[str] = set()
    for story in STORIES.values():
        diagnosis = rewrite_record(story(), lambda text, _: form.format(text))
        rewrite_record(
            redact(diagnosis, HERE), lambda text, place: left.add(place) or text if OWN.search(text) else text
        )

    assert [place for place in left if not KEPT.match(place)] == []


def test_one_name_has_one_pseudonym_in_fields_and_sentences() -> None:
    diagnosis = redacted()
    (finding,) = diagnosis.findings
    trial = diagnosis.trials[0]
    assert trial.kernels is not None
    assert finding.location is not None

    assert finding.module == trial.kernels.conversions[0].module == trial.redundant_pairs[0].module
    assert finding.message == (
        f"1 round trip around {finding.module} ({finding.location}) of {diagnosis.subject.model}, 12 MiB at 34 GB/s"
    )
    assert finding.suggestion == f"convert {(finding.module or '').split('.')[0]} once"
    assert diagnosis.subject.name == finding.location.file
    assert diagnosis.environment.command == "layoutdoctor file_1.py --output file_2.json"
    stem, convolution = (finding.module or "").split(".")
    assert trial.recompile_reasons == (f"L['self']._modules['{stem}']._modules['{convolution}'].weight strides differ",)


def test_a_module_is_found_in_longer_names_of_a_sentence() -> None:
    notes = ("see lesion_stem.tumor_conv.weight", "lesion_stem.tumor_conv/lesion_stem-relu", "no tumor_map.weight")
    trial = a_trial("eager", kernels=kernels(a_conversion(module="lesion_stem.tumor_conv")), notes=notes)
    (result,) = redact(a_diagnosis(trial), HERE).trials

    assert result.kernels is not None
    assert result.kernels.conversions[0].module == "module_1.module_2"
    assert result.notes == ("see module_1.module_2.weight", "module_1.module_2/module_1-relu", "no name_1_map.weight")


def test_what_names_point_at_numbers_layouts_and_public_names_are_kept() -> None:
    before, trial = a_secret_diagnosis().trials[0], redacted().trials[0]
    (graph,) = trial.graphs
    names = {node.name for node in graph.nodes}
    assert before.kernels is not None
    assert trial.kernels is not None

    assert set(graph.nodes[1].inputs) <= names
    assert trial.kernels.conversions[0].node in names
    assert redacted().findings[0].evidence[1] in names
    assert graph.nodes[1].target.removesuffix(".default").replace(".", "::") == trial.kernels.conversions[1].op
    assert trial.measurement == before.measurement
    assert trial.kernels.conversions[0].source == before.kernels.conversions[0].source
    assert [re.sub(r"name_\d+", "name", kernel.name) for kernel in trial.kernels.kernels] == [
        "void at::native::tumor<float>()",
        "void name::name_conv_fwd<float, 4>(float*)",
        "triton_poi_fused_convolution_relu_0",
    ]
    assert [total.name for total in trial.kernels.totals][1:3] == ["Conv2d_26", "ProfilerStep#3"]
    assert re.fullmatch(r"class_\d+_0", trial.kernels.totals[0].name)


def test_pseudonyms_are_numbered_by_appearance_alone() -> None:
    def renamed(match: re.Match[str]) -> str:
        new = f"q{match.group().lower()[::-1]}q"
        return new.title() if match.group()[0].isupper() else new

    other = rewrite_record(a_secret_diagnosis(), lambda text, _: OWN.sub(renamed, text))

    assert to_json(redact(other, HERE)).replace(b"qromutq", b"tumor") == to_json(redacted())


def test_a_redacted_record_is_readable_stays_so_and_has_the_same_findings() -> None:
    before, after = a_secret_diagnosis(), redacted()

    assert from_json(to_json(after)) == after == redact(after, HERE)
    assert [(f.code, f.severity) for f in run_rules(after)] == [(f.code, f.severity) for f in run_rules(before)]


@for_each("story", sorted(STORIES.keys() - {"hostile_names"}))
def test_layoutdoctors_own_sentences_stay_readable(story: str) -> None:
    result = redact(STORIES[story](), HERE)
    unknown: list[str] = []
    rewrite_record(
        result,
        # A log is Python's, and names functions of files that it ran.
        lambda text, place: unknown.append(text) or text if "name_" in text and place != "Failure.log" else text,
    )

    assert unknown == [] or (story == "nothing_measured" and set(unknown) == {"RuntimeError: name_1"})


def test_an_account_names_the_kernels_of_libraries_and_no_others() -> None:
    kernel = a_kernel("convolution", implementation="brgconv:avx512_core")
    named = ("convolution brgconv:avx512_core", "tumor_kernel")
    row = AccountRow(kind="layout", seconds=1.0, slower_kernels=named, source="void tumor_kernel()")
    account = Account(slower="inductor", faster="eager", slower_seconds=2.0, faster_seconds=1.0, rows=(row,))
    diagnosis = a_diagnosis(a_trial(kernels=kernels(kernels=(kernel,))), accounts=(account,))

    result = redact(diagnosis, HERE).accounts[0].rows[0]

    assert result.slower_kernels == ("convolution brgconv:avx512_core", "name_1_kernel")
    assert "tumor" not in str(result.source)


def test_files_of_public_packages_stay_and_others_get_numbers() -> None:
    public = ("site-packages/torch/nn/modules/conv.py", "torchvision/models/resnet.py", "lib/python3.11/ast.py")
    own = ("tumor.py", "<path>/tumor.py", "site-packages/tumornet/a.py", "torch.py", "src/torch/tumor.py")
    for path in (*public, "<frozen importlib>", *own):
        trial = a_trial("eager", kernels=kernels(a_conversion(location=a_location(3, path))))
        diagnosis = a_diagnosis(trial, subject=a_subject(name="net"), environment=an_environment(command=None))
        summary = redact(diagnosis, HERE).trials[0].kernels
        assert summary is not None
        assert summary.conversions[0].location == a_location(3, "file_1.py" if path in own else path)
