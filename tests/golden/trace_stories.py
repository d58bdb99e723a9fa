"""One diagnosis of a recorded trace for each shape of story that a report has to tell, made by hand."""

from __future__ import annotations

from builders import (
    a_conversion,
    a_graph,
    a_location,
    a_pair,
    a_total,
    a_trace,
    channels_last,
    contiguous,
    recorded,
)

from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding

TO_NHWC = "cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"
TO_NCHW = "cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)0>"
BACKWARD = "aten::convolution_backward"
FORWARD = "aten::cudnn_convolution"


def launched(number: int, *, back: bool = False, **changes: object) -> Conversion:
    """One launch of a cuDNN conversion kernel: to channels_last, or back."""
    there = {"kernel": TO_NHWC, "source": contiguous(), "target": channels_last(), "direction": "to_channels_last"}
    and_back = {"kernel": TO_NCHW, "source": channels_last(), "target": contiguous(), "direction": "to_contiguous"}
    fields = {
        "op": FORWARD,
        "location": None,
        "module": None,
        "seconds": 400e-6,
        "exposed_seconds": 400e-6,
        "start_seconds": number * 1e-3,
        "stream": 7,
        "confidence": "shapes",
        "step": f"ProfilerStep#{9 + number // 6}",
    }
    return a_conversion(f"kernel {number}", **(fields | (and_back if back else there) | changes))


def trace_with_round_trips() -> Diagnosis:
    """Two steps of training on two streams: what overlaps with communication costs less than it takes."""
    conversions = []
    for step in (0, 6):
        conversions += [
            launched(step, module="layer1.0.conv1", location=a_location(88, "resnet.py")),
            launched(step + 1, module="layer1.0.conv1", location=a_location(88, "resnet.py"), back=True),
            launched(step + 2, module="layer1.0.conv2", location=a_location(92, "resnet.py")),
            launched(step + 3, module="layer1.0.conv2", location=a_location(92, "resnet.py"), back=True),
            launched(step + 4, op=BACKWARD, tensor="gradient", exposed_seconds=50e-6, module="layer1.0.conv2"),
            launched(step + 5, op=BACKWARD, tensor="weight", confidence="grid", seconds=40e-6, exposed_seconds=0.0),
        ]
    padding = launched(12, direction="none", kernel="nhwcAddPaddingKernel", seconds=30e-6, exposed_seconds=30e-6)
    permuted = tuple(
        launched(
            20 + number,
            owner="framework",
            op="aten::copy_",
            kernel="elementwise_kernel",
            direction="none",
            source=contiguous((4, 8, 49, 32)),
            target=None,
        )
        for number in range(2)
    )
    pairs = tuple(
        a_pair(
            f"kernel {first}",
            f"kernel {first + 1}",
            between=("aten::cudnn_batch_norm", "aten::relu_"),
            seconds=800e-6,
            exposed_seconds=450e-6 if first == 3 else 800e-6,
            confidence=confidence,
            location=a_location(92, "resnet.py"),
            module="layer1.0.conv2",
            proof=f"known by {confidence}; what ran between works in any layout",
        )
        for first, confidence in ((1, "shapes"), (7, "shapes"), (3, "order"))
    )
    totals = (
        a_total("operation", FORWARD, count=12, seconds=18e-3, conversion_count=8, conversion_seconds=3.2e-3),
        a_total("operation", BACKWARD, count=30, seconds=31e-3, conversion_count=4, conversion_seconds=0.88e-3),
        a_total("operation", "aten::relu_", count=20, seconds=4e-3),
        a_total("module", "layer1.0.conv2", count=20, seconds=26e-3, conversion_count=6, conversion_seconds=2.4e-3),
        a_total("module", "layer1.0.conv1", count=20, seconds=20e-3, conversion_count=4, conversion_seconds=1.6e-3),
        a_total("step", "ProfilerStep#10", count=50, seconds=49e-3, conversion_count=6, conversion_seconds=2.04e-3),
        a_total("step", "ProfilerStep#9", count=50, seconds=48e-3, conversion_count=6, conversion_seconds=2.04e-3),
        a_total("kernel", "ncclDevKernel_AllReduce_Sum_f16_RING_LL", count=2, seconds=30e-3, library="nccl"),
        a_total(
            "kernel", TO_NHWC, count=8, seconds=2.48e-3, conversion_count=8, conversion_seconds=2.48e-3, library="cudnn"
        ),
        a_total(
            "kernel", TO_NCHW, count=4, seconds=1.6e-3, conversion_count=4, conversion_seconds=1.6e-3, library="cudnn"
        ),
    )
    return a_trace(
        recorded(
            *conversions,
            padding,
            seconds=97e-3,
            convolution_count=42,
            convolution_seconds=49e-3,
            totals=totals,
            lacks=("7 of 100 kernels were launched before the recording began, so their operations are not known",),
        ),
        subject={"name": "resnet_training.json.gz"},
        graphs=(a_graph(name="recorded", conversions=permuted),),
        redundant_pairs=pairs,
        findings=(
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="warning",
                configuration="recorded",
                message="3 round trips: contiguous -> channels_last -> contiguous around batch_norm and relu",
                suggestion="give the model and its input channels_last",
                location=a_location(92, "resnet.py"),
                module="layer1.0.conv2",
                seconds=2.4e-3,
            ),
        ),
    )


def trace_of_owners() -> Diagnosis:
    """Conversions by everybody, shapes and stack recorded, more places than a table holds, a file cut short."""
    eager = tuple(
        launched(
            number,
            owner="framework",
            op="aten::contiguous",
            kernel="void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>",
            location=a_location(10 * number, "models/a_folder_of_some_depth/unet.py"),
            back=True,
        )
        for number in range(1, 6)
    )
    generated = (
        launched(
            6, owner="compiler", kernel="triton_poi_fused_clone_3", op=None, seconds=250e-6, exposed_seconds=250e-6
        ),
    )
    library = tuple(launched(10 + number, module=f"blocks.{number}.conv") for number in range(11))
    totals = tuple(
        a_total(
            "module",
            f"UNet.down_blocks.{number}.resnets.0.a_long_name_of_a_convolution.conv",
            seconds=(30 - number) * 1e-4,
            conversion_count=1,
            conversion_seconds=4e-4,
        )
        for number in range(11)
    )
    operation = a_total(name=FORWARD, count=33, seconds=27.5e-3, conversion_count=11, conversion_seconds=4.4e-3)
    return a_trace(
        recorded(
            *library, seconds=50e-3, convolution_count=33, convolution_seconds=27.5e-3, totals=(operation, *totals)
        ),
        subject={
            "name": "unet.json",
            "notes": ("the file ends in the middle of an event: 4012 complete events were read",),
        },
        environment={"torch": "2.6.0"},
        graphs=(a_graph(name="recorded", conversions=(*eager, *generated)),),
    )


def trace_without_conversions() -> Diagnosis:
    """Everything was recorded and no conversion ran: a control."""
    return a_trace(
        recorded(
            count=768,
            seconds=12.3e-3,
            convolution_count=0,
            convolution_seconds=0.0,
            totals=(a_total(name="aten::addmm", count=600, seconds=11e-3),),
        ),
        subject={"name": "bert.json.gz"},
    )


def trace_of_a_graph_replay() -> Diagnosis:
    """Kernels without operations: nothing is known beyond their names, and none of them converts."""
    return a_trace(
        recorded(
            count=555,
            seconds=8.1e-3,
            totals=(
                a_total("kernel", "Cijk_Ailk_Bljk_HHS_BH_MT64x64x32", count=300, seconds=6e-3, library="hipblaslt"),
            ),
            lacks=("555 of 555 kernels were launched by one graph replay, so their operations are not known",),
        ),
        subject={"name": "replay.json.gz", "device": "hip"},
        environment={"device_name": "AMD Instinct MI300X"},
    )


def trace_of_a_gpu_alone() -> Diagnosis:
    """Kernels without operations, some of which convert, in a direction that their names do not say."""
    name = "batched_transpose_32x32_pack_2x2_ediv_1x1_half"
    conversions = tuple(
        launched(n, kernel=name, op=None, source=None, target=None, direction="other", tensor="unknown",
                 confidence=None, step=None, seconds=80e-6, exposed_seconds=80e-6)
        for n in range(4)
    )  # fmt: skip
    return a_trace(
        recorded(
            *conversions,
            seconds=8e-3,
            totals=(
                a_total("kernel", "_ZN2ck16tensor_operation6device12_GLOBAL__N_137kernel_grouped_conv_fwd", count=4,
                        seconds=5e-3, library="miopen"),
                a_total("kernel", name, count=4, seconds=0.32e-3, conversion_count=4, conversion_seconds=0.32e-3,
                        library="miopen"),
            ),
            lacks=("operations were not recorded, so that no conversion can be laid to one, and no tensor followed",),
        ),
        subject={"name": "gpu_only.json.gz", "device": "hip"},
        environment={"device_name": "AMD Instinct MI210"},
    )  # fmt: skip


def trace_of_kernel_totals() -> Diagnosis:
    """A table of totals: one entry stands for thousands of launches, without order or shapes."""
    summed = {
        "source": None,
        "target": None,
        "tensor": "unknown",
        "confidence": None,
        "step": None,
        "exposed_seconds": None,
        "start_seconds": None,
        "stream": None,
    }
    there = launched(0, op=None, seconds=182.4e-3, count=9_846, **summed)
    back = launched(1, op=None, back=True, seconds=64.353e-3, count=3_282, **summed)
    return a_trace(
        recorded(
            there,
            back,
            count=61_216,
            seconds=6.8,
            sources=("table of kernel totals",),
            convolution_count=19_692,
            convolution_seconds=0.9277,
            totals=(
                a_total("operation", "aten::cudnn_convolution", count=19_692, seconds=0.9277, conversion_count=13_128,
                        conversion_seconds=0.246753),
                a_total("kernel", TO_NHWC, count=9_846, seconds=0.1824, conversion_count=9_846,
                        conversion_seconds=0.1824, library="cudnn"),
                a_total("kernel", TO_NCHW, count=3_282, seconds=64.353e-3, conversion_count=3_282,
                        conversion_seconds=64.353e-3, library="cudnn"),
            ),
            lacks=("a table of totals has no single launch, no order and no shapes, so no round trips are known",),
        ),
        subject={"name": "kernel_summary.csv", "device": None},
        environment={"device_name": None},
    )  # fmt: skip


def trace_of_onednn() -> Diagnosis:
    """A log of oneDNN: reorders of activations and of weights, one of them a cast only."""
    reorders = [
        a_conversion(f"reorder {n}", location=None, module=None, op="reorder", seconds=0.5e-3, confidence="order")
        for n in range(4)
    ]
    weight = a_conversion("reorder 4", location=None, module=None, op="reorder", tensor="weight", seconds=0.1e-3,
                          direction="to_blocked")  # fmt: skip
    cast = a_conversion("reorder 5", location=None, module=None, direction="none", seconds=0.1e-3)
    return a_trace(
        recorded(
            *reorders,
            weight,
            cast,
            count=14,
            seconds=12e-3,
            sources=("oneDNN verbose log",),
            totals=(
                a_total("kernel", "convolution brg_conv_fwd:avx512_core", count=6, seconds=9e-3, library="onednn"),
                a_total(
                    "kernel",
                    "reorder jit:blk",
                    count=5,
                    seconds=2.1e-3,
                    conversion_count=5,
                    conversion_seconds=2.1e-3,
                    library="onednn",
                ),
            ),
            not_understood_count=1,
        ),
        subject={"name": "onednn.log", "device": "cpu"},
        environment={"device_name": None, "onednn": "3.7.1", "onednn_isa": "Intel AVX-512", "thread_count": 2},
        redundant_pairs=(
            a_pair("reorder 0", "reorder 1", confidence="order", seconds=1e-3, location=None, module=None),
        ),
    )


def trace_without_kernels() -> Diagnosis:
    """Recorded on a CPU: no device kernel, so nothing can be concluded."""
    return a_trace(
        recorded(count=0, seconds=0.0, lacks=("no device kernels",)),
        subject={"name": "cpu_trace.json", "device": "cpu"},
        environment={"device_name": None},
    )


TRACE_STORIES = {
    story.__name__: story
    for story in (
        trace_of_a_gpu_alone,
        trace_of_a_graph_replay,
        trace_of_kernel_totals,
        trace_of_onednn,
        trace_of_owners,
        trace_with_round_trips,
        trace_without_conversions,
        trace_without_kernels,
    )
}
