from __future__ import annotations

from builders import a_conversion, a_diagnosis, a_graph, a_kernel, a_location, a_node, a_subject, a_trial, kernels
from trace_builders import to_channels_last, to_contiguous

from layoutdoctor.examination import counts


def test_conversions_are_listed_once_the_fused_where_asked_for_and_summed_up_by_place() -> None:
    kept = a_conversion("a")
    trial = a_trial(
        kernels=kernels(kept, a_conversion("b", direction="none")),
        graphs=(a_graph(conversions=(a_conversion("c", fused=True), kept, a_conversion("d"))),),
    )

    assert [conversion.id for conversion in counts.conversions_of(trial)] == ["a", "d"]

    fused, none = a_conversion("b", fused=True), a_conversion("c", direction="none")
    trial = a_trial(kernels=kernels(a_conversion("a"), none), graphs=(a_graph(conversions=(fused,)),))

    assert [c.id for c in counts.all_conversions_of(trial)] == ["a", "b"]
    assert [c.id for c in counts.conversions_of(trial)] == ["a"]

    assert counts.sum_of_known([None, None]) is None
    assert counts.sum_of_known([None, 1.5, 0.5]) == 2.0

    assert counts.launch_count([to_channels_last("a", count=400), to_contiguous("b")]) == 401

    copies = [
        to_channels_last("a", module="conv_1", location=None, seconds=None),
        to_channels_last("b", module="conv_2", location=a_location(3), seconds=2e-4, count=5),
        to_channels_last("c", module="conv_1", location=None, seconds=1e-4),
        to_channels_last("d", module=None, location=None, seconds=1.0),
    ]

    assert counts.places_of(copies) == [
        counts.Hotspot("conv_2", a_location(3), 2e-4, 6_422_528),
        counts.Hotspot("conv_1", None, 1e-4, 2 * 6_422_528),
    ]


def test_quantised_convolutions_between_the_graphs_are_convolutions() -> None:
    graphs, subject = (a_graph(nodes=(a_node("a", "aten.add.Tensor"),)),), a_subject(convolution_module_count=0)
    quantised = kernels(kernels=(a_kernel("quantized::conv2d", library="fbgemm"), a_kernel("aten::dequantize")))
    own = kernels(kernels=(a_kernel("cpp_fused_convolution_0", library="inductor"),))

    for ran, expected in ((quantised, 1), (own, 0), (None, 0)):
        diagnosis = a_diagnosis(a_trial(graphs=graphs, kernels=ran), subject=subject)
        assert counts.convolution_count(diagnosis) == expected


def test_a_graph_that_a_later_compile_replaced_counts_in_no_call() -> None:
    graphs = tuple(
        a_graph(name=name, conversions=(a_conversion(f"{name} conversion 0", owner="compiler"),))
        for name in ("graph 0", "graph 1")
    )
    ran = kernels(kernels=(a_kernel("cpp_fused_convolution_0", graph="graph 1"), a_kernel("reorder")))

    for recompiled, listed, expected in (
        (1, ran, ["graph 1 conversion 0"]),
        (0, ran, ["graph 0 conversion 0", "graph 1 conversion 0"]),  # both ran: a graph break is between them
        (1, kernels(kernels=(a_kernel("reorder"),)), ["graph 0 conversion 0", "graph 1 conversion 0"]),
        (1, None, ["graph 0 conversion 0", "graph 1 conversion 0"]),
    ):
        trial = a_trial(graphs=graphs, kernels=listed, recompile_count=recompiled)
        assert [conversion.id for conversion in counts.counted_conversions(trial)] == expected
        assert len(counts.all_conversions_of(trial)) == 2
