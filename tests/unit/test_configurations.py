from __future__ import annotations

from typing import Any, cast

import pytest
from builders import a_configuration

from layoutdoctor.capture.compat import inductor_config
from layoutdoctor.diagnosis.compile_arguments import check_compile_arguments, compiled_with, read_compile_arguments
from layoutdoctor.diagnosis.compile_options import MAY_BE_SET
from layoutdoctor.diagnosis.configurations import (
    BASELINE,
    BUILTIN_CONFIGURATIONS,
    DEFAULT_CONFIGURATIONS,
    by_aot_inductor,
    check_package,
    choose_configurations,
)
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.advice.applying import ModelCall, compile_words, how_to_apply
from layoutdoctor.words import name_in_words


def names(*choice: object, mode: str = "inference") -> list[str]:
    return [c.name for c in choose_configurations(choice[0], mode)]  # type: ignore[arg-type]


def test_the_names_are_unique_and_the_baseline_is_torch_compiles_default() -> None:
    all_names = [c.name for c in BUILTIN_CONFIGURATIONS]
    baseline = next(c for c in DEFAULT_CONFIGURATIONS if c.name == BASELINE)

    assert len(set(all_names)) == len(all_names) == 12
    assert (baseline.backend, baseline.layout_optimization, baseline.inductor_options) == ("inductor", "default", {})
    assert (baseline.model_format, baseline.input_format) == ("preserve", "preserve")

    assert all((c.layout_optimization is None) == (c.backend == "eager") for c in BUILTIN_CONFIGURATIONS)


def test_default_quick_and_all_stand_for_the_built_in_ones_that_fit_the_mode() -> None:
    frozen = ["inductor-freezing", "inductor-channels-last-freezing"]
    assert names("default") == [c.name for c in DEFAULT_CONFIGURATIONS]
    assert names("default") == [*names("default", mode="training"), *frozen]
    assert names("quick") == ["inductor", "inductor-channels-last", "inductor-channels-last-freezing"]
    assert names("quick", mode="training") == names("quick")[:2]
    assert names("all") == [c.name for c in BUILTIN_CONFIGURATIONS]
    assert names("all", mode="training") == [*names("default", mode="training"), "inductor-layout-opt-forced"]


def test_names_and_ones_own_come_in_the_order_asked_for_and_once() -> None:
    assert names("inductor, eager,,inductor") == ["inductor", "eager"]
    assert names(["eager", "inductor"]) == ["eager", "inductor"]
    assert names("eager,default")[0] == "eager"
    assert len(names("eager,default")) == len(DEFAULT_CONFIGURATIONS)

    own = a_configuration("own", inductor_options={"max_autotune": True})
    assert choose_configurations(own) == (own,)
    assert [c.name for c in choose_configurations(["inductor", own])] == ["inductor", "own"]


def test_one_name_for_two_and_an_unknown_name_are_errors() -> None:
    with pytest.raises(UsageError, match="two different configurations under the name 'eager'"):
        choose_configurations(["eager", a_configuration("eager", inductor_options={"max_autotune": True})])

    with pytest.raises(UsageError, match="'nhwc': expected one of eager, eager-channels-last"):
        choose_configurations("nhwc")
    for nothing in ("", " , ", []):
        with pytest.raises(UsageError, match="expected at least one name"):
            choose_configurations(nothing)


def test_arguments_of_torch_compile_are_kept_save_what_a_configuration_decides_itself() -> None:
    mode = 'mode="reduce-overhead", dynamic=True'
    options = 'options={"layout_optimization": False, "freezing": True, "epilogue_fusion": False}'

    def words(name: str, text: str) -> str:
        return compile_words(compiled_with(choose_configurations(name)[0], read_compile_arguments(text)))

    assert read_compile_arguments('backend="inductor", fullgraph=None') == {}
    assert words(BASELINE, "fullgraph=True") == "fullgraph=True"
    assert words(BASELINE, mode) == mode
    assert words("inductor-layout-opt-off", mode) == (
        'dynamic=True, options={**torch._inductor.list_mode_options("reduce-overhead"), "layout_optimization": False}'
    )
    assert words(BASELINE, options) == 'options={"layout_optimization": False, "epilogue_fusion": False}'
    assert words("inductor-layout-opt-on", options) == 'options={"layout_optimization": True, "epilogue_fusion": False}'
    assert words("eager", options) == ""


def test_aot_inductor_compiles_what_is_compiled_beside_torch_compiles_default() -> None:
    given = read_compile_arguments('mode="max-autotune"')
    asked = [compiled_with(one, given) for one in choose_configurations("eager,inductor-layout-opt-off,inductor")]

    made = by_aot_inductor(asked, given)

    assert [one.name for one in made] == ["inductor", "eager", "aot-inductor-layout-opt-off", "aot-inductor"]
    assert [one.ahead_of_time for one in made] == [False, False, True, True]
    assert made[0] == asked[2]
    assert [name_in_words(one.name) for one in made[2:]] == ["AOTInductor, no layout opt", "AOTInductor"]
    assert how_to_apply(made[2], frozenset({4}), ModelCall("model(x, 3, mask=mask)", {})).splitlines() == [
        'program = torch.export.export(model.eval(), (x, 3), {"mask": mask})',
        'package = torch._inductor.aoti_compile_and_package(program, package_path="model.pt2", inductor_configs='
        '{**torch._inductor.list_mode_options("max-autotune"), "layout_optimization": False})',
        "model = torch._inductor.aoti_load_package(package)  # it does not check the memory format of its inputs",
        "y = model(x, 3, mask=mask)",
    ]
    with pytest.raises(UsageError, match="cannot compile a package with dynamic=True"):
        by_aot_inductor([compiled_with(asked[1], {"dynamic": True})], {"dynamic": True})
    assert by_aot_inductor(asked[:2], given)[0] == asked[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.so", "inference", None), "expected a file whose name ends in .pt2"),
        (("m.pt2", "training", None), "AOTInductor compiles for inference"),
        (("m.pt2", "inference", "cuda:90"), "nothing is compiled to the end for 'cuda:90'"),
    ],
)
def test_a_package_that_cannot_be_made_is_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UsageError, match=f"cannot keep a package in '{arguments[0]}': {words}"):
        check_package(*arguments)


@pytest.mark.parametrize("text", ["", "3", "mode=", '**{"mode": "x"}', "mode=other", ")+(1", "model, dynamic=True"])
def test_what_is_no_list_of_constants_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected keyword arguments of torch"):
        read_compile_arguments(text)


@pytest.mark.parametrize("text", ['backend="eager"', "disable=True", "name=1"])
def test_an_argument_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"cannot compile with {text.partition('=')[0]}=.*: expected mode, dynamic, "):
        read_compile_arguments(text)


def test_an_option_whose_value_is_no_constant_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a number, a string, True, False or None"):
        read_compile_arguments('options={"a": [1]}')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpp.cxx", "/tmp/program"),
        ("cpp.gxx", "g++"),
        ("cpp.march", "native -fplugin=x"),
        ("cuda.cuda_cxx", "/tmp/nvcc"),
        ("trace.enabled", True),
        ("fx_graph_remote_cache", True),
        ("post_grad_custom_pre_pass", None),
        ("max_autotune_gemm_backends", "ATEN -x"),
    ],
)
def test_an_option_that_does_more_than_choose_code_is_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match="expected options of Inductor that only choose how code is generated"):
        check_compile_arguments({"options": {name: value}})
    with pytest.raises(UsageError, match="cannot use 'own' with"):
        choose_configurations(a_configuration("own", inductor_options={name: value}))


def test_options_are_what_torch_takes_for_them() -> None:
    assert check_compile_arguments({"options": None, "mode": "default"}) == {"mode": "default"}
    for options in (5, [1], "x"):
        with pytest.raises(UsageError, match="expected options by name"):
            check_compile_arguments({"options": options})
    with pytest.raises(UsageError, match=r"expected arguments of torch\.compile by name"):
        check_compile_arguments(cast("Any", 5))


def test_every_option_that_may_be_set_is_one_of_inductors() -> None:
    known = set(inductor_config().get_config_copy())

    assert {name for name in MAY_BE_SET if name not in known} <= {"use_mixed_mm"}
