from __future__ import annotations

from builders import a_conversion, a_diagnosis, a_location, a_ratio, a_speedup, a_trial, kernels
from trace_builders import a_recorded_trial, an_eager_copy, to_channels_last, to_contiguous

from layoutdoctor.rules import evidence


def test_which_facts_it_gives() -> None:
    # A speed without enough rounds for an interval has a range.
    ratio = a_ratio("eager", 0.61, width=0.01, coverage=None)
    assert evidence.speed_words(ratio, "inductor") == "eager runs at 0.61x the speed of inductor (range 0.60x to 0.62x)"

    # A verified gain has its interval.
    assert evidence.speedup_words(a_speedup(1.28)) == "1.28x faster (1.25x to 1.31x)"

    # A cost is told as part of the kernel time where that was recorded.
    assert evidence.cost_words(a_trial(), 3e-3) == "3.00 ms of 15.0 ms kernel time (20 %)"
    assert evidence.cost_words(a_trial(kernels=kernels(share=None, seconds=15e-3)), None) is None
    assert evidence.cost_words(a_trial(kernels=None), 3e-3) == "3.00 ms"

    # Without a comparison no speed is told.
    trial, other = a_trial(), a_trial("eager")
    assert evidence.alternative_words(a_diagnosis(trial, other), trial, other) == ""

    # A cost says where its number is from.
    assert evidence.cost_words(a_trial(), 3e-3, "estimated") == "3.00 ms of 15.0 ms kernel time (20 %, estimated)"
    assert evidence.cost_words(a_trial(kernels=None), 3e-3, "estimated") == "3.00 ms (estimated)"

    # A sum of costs is measured estimated or partly estimated.
    assert evidence.source_words(["measured", "measured"]) == "measured"
    assert evidence.source_words(["estimated"]) == "estimated"
    assert evidence.source_words(["measured", "estimated", None]) == "partly estimated"
    assert evidence.source_words(["measured", None]) is None
    assert evidence.source_words([]) is None

    # Conversions cost their time else what they move.
    known, unknown = a_conversion(seconds_source="estimated"), a_conversion("b", seconds=None)
    assert evidence.conversion_cost_words(a_trial(), [known, unknown]) == (
        "1.00 ms of 15.0 ms kernel time (6.7 %, estimated)"
    )
    assert evidence.conversion_cost_words(a_trial(), [unknown]) == "6.12 MiB moved"
    assert evidence.conversion_cost_words(a_trial(), [a_conversion(seconds=None, bytes_moved=None)]) is None

    # Steps are told where there are several.
    def in_steps(*steps: str | None) -> str | None:
        return evidence.step_words([to_channels_last(f"k{i}", step=step) for i, step in enumerate(steps)])

    assert in_steps("1", "2", "1", "2") == "2 in each of 2 recorded steps"
    assert in_steps("1", "2", "1") == "in 2 recorded steps"
    assert in_steps("1", "1") is None
    assert in_steps(None, None) is None

    # Names are told with counts where there are several.
    assert evidence.named_counts([]) is None
    assert evidence.named_counts([("copy_", 3), ("copy_", 1)]) == "copy_"
    assert evidence.named_counts([("clone", 1), ("copy_", 3), ("clone", 1)]) == "copy_ (3) and clone (2)"

    # The dearest direction is that of the most time then of the most launches.
    slow, fast = to_contiguous("a", seconds=2e-4), to_channels_last("b", seconds=1e-4, count=9)
    assert evidence.dearest_direction([fast, slow]) == "to_contiguous"
    assert evidence.dearest_direction(
        [to_contiguous("a", seconds=None), to_channels_last("b", seconds=None, count=9)]
    ) == ("to_channels_last")
    assert evidence.dearest_direction([]) is None

    # The format to try follows the rank where all have the same.
    assert evidence.channels_last_words([4, 4]) == "torch.channels_last"
    assert evidence.channels_last_words([5]) == "torch.channels_last_3d"
    assert evidence.channels_last_words([4, 5]) == "torch.channels_last"
    assert evidence.channels_last_words([]) == "torch.channels_last"

    # An amd gpu needs a switch for channels last and no other does.
    def words(*kernels: str | None) -> str:
        return evidence.miopen_words([to_channels_last("a", kernel=kernel) for kernel in kernels])

    switch = "; before ROCm 7, channels_last takes effect only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"
    assert words(None, "batched_transpose_64x64_pack_4x4_ediv_2x2_half") == switch
    assert words("void cudnn::ops::nchwToNhwcKernel<float, float>", None) == ""
    assert words() == ""

    # Several places are named with their counts and the rest is counted.
    copies = [
        to_channels_last("a", module=None, location=a_location(3), seconds=2e-4, count=5),
        to_channels_last("b", module="conv_1", location=None, seconds=1e-4, count=2),
        to_channels_last("c", module="conv_2", location=a_location(4), seconds=None, bytes_moved=9),
        to_channels_last("d", module="conv_3", location=None, seconds=None, bytes_moved=8),
    ]
    assert evidence.places_words(copies) == (
        "5 at model.py:3, 2 in conv_1, 1 in conv_2 (model.py:4) and the others at 1 more place"
    )
    assert evidence.dearest_place_words(copies) == "most at model.py:3: 5 of them, 200 us"
    assert evidence.dearest_place_words(copies[2:]) == "most in conv_2 (model.py:4): 1 of them"
    assert evidence.places_words(copies[:1]) is evidence.dearest_place_words(copies[:1]) is None

    # What libraries took is a part of the convolution time and what ran meanwhile is told.
    trial = a_recorded_trial()
    assert evidence.conversion_cost_words(trial, [to_contiguous("a")]) == (
        "100 us of 15.0 ms kernel time (0.7 %, 2.5 % of the convolution time), 40.0 us of it while nothing else ran"
    )
    assert evidence.conversion_cost_words(trial, [an_eager_copy("a")]) == (
        "100 us of 15.0 ms kernel time (0.7 %), 40.0 us of it while nothing else ran"
    )
