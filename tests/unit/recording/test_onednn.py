from __future__ import annotations

import pytest

from layoutdoctor.examination.kernels.logs import summarize_log
from layoutdoctor.recording.onednn import Primitive, read_onednn_log

REORDER = (
    "onednn_verbose,v1,1790000000123.456543,primitive,exec,cpu,reorder,jit:blk,undef,"
    "src:f32::blocked:abcd::f0 dst:f32::blocked:aBcd16b::f0,attr-scratchpad:user,,4x64x56x56,0.512939"
)
CONVOLUTION = (
    "onednn_verbose,v1,1790000000124.001,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src:f32:a:blocked:aBcd16b::f0 wei:f32:a:blocked:ABcd16b16a::f0 bia:f32:a:blocked:a::f0 "
    "dst:f32:a:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,"
    "mb4_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1,1.25"
)
HEADER = "onednn_verbose,v1,info,oneDNN v3.12.0 (commit 0123456789abcdef)"
OLD = "exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0 dst_f32::blocked:aBcd16b:f0,,,2x16x7x7,0.01"


def only(line: str) -> Primitive:
    (primitive,) = read_onednn_log(line).primitives
    return primitive


def formats(primitive: Primitive) -> list[tuple[str, str, str]]:
    return [(item.role, item.dtype, item.tag) for item in primitive.descriptors]


def test_lines_of_other_programs_may_be_in_between() -> None:
    log = read_onednn_log(f"hello\n{REORDER}\n  see onednn_verbose,exec in the manual\n\n{CONVOLUTION}\n")

    assert [item.kind for item in log.primitives] == ["reorder", "convolution"]
    assert log.other_lines == ["hello", "  see onednn_verbose,exec in the manual", ""]
    assert (log.not_understood, log.has_timestamps) == ([], True)
    assert not read_onednn_log(f"{REORDER}\n{CONVOLUTION.replace('1790000000124.001,', '')}").has_timestamps


PREFIXES = ["[0] ", "[rank0]: ", " > ", "\t* ", "0: ", "node-3.local: ", "[1,0] ", "(RayWorker pid=12) ", "app_1  | "]
PREFIXES += ["2024-05-01 12:00:00,123 - INFO - ", "2024-05-01T12:00:00.000Z stdout F ", "INFO:root:"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_a_launcher_writes_in_front_is_left_out(prefix: str) -> None:
    log = read_onednn_log(f"{prefix}{HEADER}\n{prefix}{REORDER}\n{prefix}see onednn_verbose,exec,")
    assert [item.shape for item in log.primitives] == [(4, 64, 56, 56)]
    assert (log.version, len(log.other_lines)) == ("3.12.0", 1)


@pytest.mark.parametrize("start", ["onednn_verbose", "dnnl_verbose", "mkldnn_verbose", "onednn_verbose,primitive"])
def test_lines_of_onednn_2_name_the_dtype_in_the_role(start: str) -> None:
    reorder = only(f"{start},{OLD}")

    assert formats(reorder) == [("src", "f32", "abcd"), ("dst", "f32", "aBcd16b")]
    assert reorder.shape == (2, 16, 7, 7)
    assert reorder.seconds == pytest.approx(1e-5)


OLDEST = "mkldnn_verbose,exec,reorder,undef,in:f32_goihw out:f32_gOIhw8i8o,num:1,1x16x16x5x5,0.5"
OLD_CONVOLUTION = (
    "mkldnn_verbose,exec,convolution,jit:avx2,forward_training,fsrc:nChw8c fwei:OIhw8i8o fbia:x fdst:nChw8c,"
    "alg:convolution_direct,mb1_ic16oc16_ih9oh9kh3sh1dh0ph1_iw9ow9kw3sw1dw0pw1,0.25"
)


def test_lines_of_mkl_dnn_have_formats_with_names() -> None:
    log = read_onednn_log(
        "mkldnn_verbose,info,Intel(R) MKL-DNN v0.16.0 (Git Hash 4cfe),Intel(R) Advanced Vector Extensions 2\n"
        f"{OLDEST}\n{OLDEST.replace('reorder,', 'reorder,jit:uni,')}\n{OLD_CONVOLUTION}"
    )

    assert (log.version, log.isa) == ("0.16.0", "Intel(R) Advanced Vector Extensions 2")
    first, second, convolution = log.primitives
    assert formats(first) == formats(second) == [("src", "f32", "abcde"), ("dst", "f32", "aBCde8c8b")]
    assert [item.implementation for item in log.primitives] == ["", "jit:uni", "jit:avx2"]
    assert formats(convolution) == [
        ("src", "", "aBcd8b"),
        ("wei", "", "ABcd8b8a"),
        ("bia", "", "a"),
        ("dst", "", "aBcd8b"),
    ]
    assert (convolution.seconds, convolution.engine) == (0.25e-3, "cpu")
    assert formats(only(OLDEST.replace("f32_goihw", "f32_ldigo")))[0] == ("src", "f32", "")


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        ("create:cache_miss", (1, 0)), ("create", (1, 0)), ("create:from_cache_blob", (1, 0)),
        ("create:persistent_cache_miss", (1, 0)), ("create:cache_hit", (0, 1)), ("create:kernel_cache_hit", (0, 1)),
        ("create_nested:cache_miss", (0, 0)), ("create_nested", (0, 0)),
    ],
)  # fmt: skip
def test_what_was_created_is_counted_and_summed(how: str, counts: tuple[int, int]) -> None:
    lines = [REORDER.replace(",exec,", f",{how},"), f"onednn_verbose,{OLD}".replace("exec", how)]
    lines.append(OLD_CONVOLUTION.replace("exec", how))
    log = read_onednn_log("\n".join((*lines, lines[0].rsplit(",", 1)[0], REORDER)))

    assert ([creation.how for creation in log.creations], len(log.not_understood)) == ([how] * 3, 1)
    found = summarize_log(log).creations
    if counts == (0, 0):
        assert found is None
        return
    assert found is not None
    assert (found.count, found.distinct_count, found.hit_count) == (3 * counts[0], 3 * counts[0], 3 * counts[1])
    assert found.seconds == pytest.approx(0.772939e-3)
    assert (found.longest, found.longest_seconds) == ("reorder 4x64x56x56", pytest.approx(0.512939e-3))


def test_two_lines_in_one_are_two_and_a_cut_one_is_counted() -> None:
    whole = "onednn_verbose,primitive,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd::f0 dst_f32:::::,,,4x"
    log = read_onednn_log(f"{whole[:60]}{REORDER}{CONVOLUTION}\n{whole[:-1]}\n{whole}7x7x7,0.5")

    assert [item.kind for item in log.primitives] == ["reorder", "convolution", "reorder"]
    assert log.not_understood == [whole[:60], whole[:-1]]


@pytest.mark.parametrize("width", [80, 119, 150])
def test_a_line_that_was_broken_is_whole_again(width: int) -> None:
    lines = [HEADER, "Epoch 1", REORDER, "loss: 0.5", CONVOLUTION, "", "7"]
    parts = [line[at : at + width] for line in lines for at in range(0, len(line) or 1, width)]
    log, whole = (read_onednn_log("\n".join(each)) for each in (parts, lines))

    assert (log.primitives, log.not_understood) == (whole.primitives, [])
    assert len(log.primitives) == 2
    indented = "\n".join(lines).replace("undef,src", "undef,\n    src").replace("alg:", "\n    alg:")
    assert read_onednn_log(indented).primitives == whole.primitives


def test_partitions_and_errors_are_kept_apart() -> None:
    partition = (
        "onednn_verbose,v1,graph,exec,cpu,100002,convolution_post_ops,conv_0;relu_1,,,,fpm:strict,larger_kernel_t,1.0"
    )
    error = "onednn_verbose,v1,common,error,runtime,out of memory"
    log = read_onednn_log(f"{partition}\n{error}\nonednn_verbose,v1,common,warning,unknown option")

    assert (log.partition_seconds, log.errors, log.primitives) == ([1e-3], [error], [])
    assert log.not_understood == []
    assert [lack.reason for lack in summarize_log(log).lacks[1:]] == [
        "what ran inside 1 partition of oneDNN Graph (1.00 ms), unless the log lists it separately",
        f"oneDNN reports 1 error, first: {error}",
    ]


def test_a_difference_tensor_is_found_by_its_role() -> None:
    line = (
        "onednn_verbose,exec,cpu,convolution,jit:avx512_core,backward_data,"
        "diff_src_f32::blocked:aBcd16b:f0 wei_bf16::blocked:ABcd16a16b:f0 diff_dst_f32::blocked:aBcd16b:f0,,"
        "alg:convolution_direct,mb2_ic16oc16_ih7oh7kh3sh1dh0ph1_iw7ow7kw3sw1dw0pw1,0.5"
    )
    weight, gradient = only(line).descriptor("wei"), only(line).descriptor("dst")

    assert weight is not None
    assert weight.dtype == "bf16"
    assert gradient is not None
    assert (gradient.role, gradient.dtype, gradient.tag) == ("diff_dst", "f32", "aBcd16b")

    # An undefined tensor has no format and no layout.
    line = CONVOLUTION.replace("bia:f32:a:blocked:a::f0", "bia:undef::undef:::")
    bias = only(line).descriptor("bia")
    assert bias is not None
    assert (bias.tag, bias.layout((64,))) == ("", None)


@pytest.mark.parametrize(
    ("tag", "shape", "stride"),
    [
        ("acdb", (2, 3, 4, 5), (60, 1, 15, 3)),
        ("abdec", (4, 2, 3, 5, 6), (180, 90, 1, 18, 3)),
        ("acdeb", (2, 3, 4, 5, 6), (360, 1, 90, 18, 3)),
    ],
)
def test_a_plain_format_is_a_stride(tag: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    size = "x".join(map(str, shape))
    descriptor = only(REORDER.replace(":abcd:", f":{tag}:").replace("4x64x56x56", size)).descriptor("src")

    assert descriptor is not None
    layout = descriptor.layout(shape)
    assert layout is not None
    assert layout.stride == stride


def test_what_is_no_run_of_a_primitive_is_passed_over_and_what_cannot_be_read_is_kept() -> None:
    for passed in (
        "create:dispatch,convolution,cpu,convolution,skipping,unsupported isa,file.cpp:10",
        "create:start,cpu,convolution,jit:avx2,forward,src:f32::blocked:abcd::f0,,alg:convolution_direct,mb2ic1oc1",
        "exec:start,cpu,convolution,jit:avx2,forward,src:f32::blocked:abcd::f0,,alg:convolution_direct,mb2ic1oc1",
        "exec:check,primitive,unused primitive execution argument (4113),file.cpp:74",
    ):
        log = read_onednn_log(f"onednn_verbose,v1,primitive,{passed}")
        assert (log.primitives, log.not_understood, log.creations) == ([], [], [])
    for line in (
        "onednn_verbose,v1,primitive,exec,cpu,reorder",
        REORDER.rsplit(",", 1)[0] + ",soon",
        REORDER.rsplit(",", 1)[0] + ",1e300",
        "onednn_verbose,v1,something new",
    ):
        log = read_onednn_log(line)
        assert (log.primitives, log.not_understood) == ([], [line])
