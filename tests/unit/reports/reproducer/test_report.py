"""The reproducer from records made by hand: what it writes, and what a hostile record cannot do to it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest
import reviewed
from builders import (
    a_comparison,
    a_conversion,
    a_kernel,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trace,
    an_environment,
    an_input,
    channels_last,
    contiguous,
    kernels,
    recorded,
)
from golden.stories import STORIES
from loops import for_each
from reproducer_builders import (
    BUILTIN,
    FEATURES,
    IMAGES,
    Recorder,
    a_builtin,
    a_chain,
    a_record,
    begun,
    reason_of,
    script_of,
    telling,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Configuration, Cure, Equivalence, Finding, Recipe, Reproduction
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.reports.reproducer.report import MOST_CODE_LINES, build_reproducer, code_line_count, render_reproducer

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import FxNode


def case_a_chain_is_a_sequential_with_its_blocks_as_a_loop() -> str:
    return script_of(*a_chain(4))


def case_both_configurations_are_written_as_public_calls() -> str:
    return script_of(*a_chain(2))


def case_what_is_inconclusive_is_not_held_against_the_script() -> str:
    ratio = a_ratio("inductor-channels-last", 1.0, 0.05)
    return script_of(*a_chain(2), comparison=a_comparison(ratio, fastest=("inductor", ratio.name)))


@for_each(
    ("name", "text"),
    [
        ("inductor-layout-opt-off", 'dynamic=False, options={"layout_optimization": False})'),
        ("inductor-layout-opt-on", 'dynamic=False, options={"layout_optimization": True})'),
        ("inductor-layout-opt-forced", '{"layout_optimization": True, "force_layout_optimization": True})'),
        ("inductor-freezing", "with torch._inductor.config.patch(freezing=True):"),
        ("inductor-freezing", 'dynamic=False, options={"freezing": True})'),
        ("eager", "    net = model"),
    ],
)
def test_options_of_a_configuration(name: str, text: str) -> None:
    nodes, output = a_chain(2)
    record = a_record(nodes, output, recommendation=a_recommendation(name))
    if name != "eager":
        record = msgspec.structs.replace(record, trials=(*record.trials, a_builtin(name, "reorder")))

    assert text in render_reproducer(record)


def case_where_the_default_is_kept_what_looked_faster_is_shown() -> str:
    nodes, output = a_chain(2)
    finding = Finding(
        code="LD101", rule="round-trip-conversion", severity="warning", configuration="eager", message="secret_module"
    )
    return build_reproducer(
        a_record(nodes, output, recommendation=a_recommendation("inductor"), findings=(finding,))
    ).script


def case_a_configuration_that_is_the_same_as_the_default_is_not_compared_with_it() -> str:
    nodes, output = a_chain(2)
    record = a_record(nodes, output, recommendation=a_recommendation("inductor-layout-opt-on"))
    same = a_builtin("inductor-layout-opt-on", status="same_as", same_as="inductor")
    return build_reproducer(msgspec.structs.replace(record, trials=(*record.trials, same))).script


def case_names_of_ones_own_configurations_stay_out() -> str:
    nodes, output = a_chain(2)
    own = Configuration(name="acme-secret", backend="inductor", inductor_options={"max_autotune": True})
    record = a_record(nodes, output, recommendation=a_recommendation("acme-secret"))
    trials = (*record.trials, a_builtin("inductor", "reorder", configuration=own))
    return build_reproducer(msgspec.structs.replace(record, trials=trials)).script


def case_a_copied_name_with_other_options_is_no_built_in_configuration() -> str:
    nodes, output = a_chain(2)
    own = msgspec.structs.replace(BUILTIN["inductor-channels-last"], inductor_options={"x": "__import__('os')"})
    record = a_record(nodes, output)
    trials = (*record.trials[:2], a_builtin("inductor-channels-last", "reorder", configuration=own))
    return reason_of(msgspec.structs.replace(record, trials=trials))


def a_network(last: bool = False) -> tuple[list[FxNode], str]:
    """A residual block, a concatenation, a pooling, and a linear layer at its end."""
    recorder, x = begun(IMAGES, last=last)
    x = recorder.convolution(x, (64, 3, 3, 3), FEATURES, last=last)
    y = recorder.call("aten.relu.default", recorder.convolution(x, (64, 64, 3, 3), FEATURES, last=last))
    x = recorder.call("aten.add.Tensor", f"{x}, {y}")
    if last:
        x = recorder.call("aten.clone.default", f"{x}, memory_format=torch.contiguous_format")
    x = recorder.call("aten.cat.default", f"[{x}, {y}], 1", (4, 128, 56, 56))
    x = recorder.call("aten.mean.dim", f"{x}, [-1, -2], True", (4, 128, 1, 1))
    if last:
        x = recorder.call("aten.as_strided_.default", f"{x}, [4, 128, 1, 1], [128, 1, 128, 128]", (4, 128, 1, 1))
    x = recorder.call("aten.view.default", f"{x}, [4, 128]", (4, 128))
    turned = recorder.call("aten.t.default", recorder.placeholder((10, 128), weight=True), (128, 10))
    return recorder.nodes, recorder.call("aten.addmm.default", f"{recorder.placeholder((10,))}, {x}, {turned}", (4, 10))


def case_what_is_no_chain_is_a_module_with_a_forward() -> str:
    return script_of(*a_network())


def case_a_call_of_contiguous_shows_where_another_layout_ran_it() -> str:
    nodes, output = a_network()
    record = a_record(nodes, output)
    last, last_output = a_network(last=True)
    other = a_builtin("eager-channels-last", nodes=last, output=last_output)
    return render_reproducer(msgspec.structs.replace(record, trials=(*record.trials, other)))


def case_repeated_statements_are_a_loop() -> str:
    recorder = Recorder()
    x = recorder.convolution(recorder.placeholder(IMAGES), (64, 3, 3, 3), FEATURES)
    for _ in range(5):
        y = recorder.call("aten.silu.default", recorder.convolution(x, (64, 64, 3, 3), FEATURES))
        x = recorder.call("aten.add.Tensor", f"{x}, {y}")
    return script_of(recorder.nodes, x)


def case_what_no_output_needs_is_left_out() -> str:
    recorder, x = begun(IMAGES)
    recorder.call("aten.empty.memory_format", "[0], dtype=torch.uint8", (0,))
    recorder.call("mine.unknown.default", x)
    return script_of(recorder.nodes, recorder.call("aten.relu.default", x))


def case_a_model_in_channels_last_and_half_precision_is_made_so() -> str:
    recorder, x = begun(IMAGES, last=True, dtype="bfloat16")
    weight = recorder.placeholder((64, 3, 3, 3), weight=True, last=True, dtype="bfloat16")
    pair = "[1, 1]"
    y = recorder.call("aten.convolution.default", f"{x}, {weight}, None, {pair}, {pair}, {pair}, False, [0, 0], 1")
    return script_of(recorder.nodes, y, subject=a_subject(inputs=(an_input(channels_last(IMAGES), dtype="bfloat16"),)))


def case_an_input_with_strides_of_its_own_has_them() -> str:
    recorder = Recorder()
    layout = strided_layout((8, 256, 64), (16384, 1, 256))
    x = recorder.placeholder((8, 256, 64), layout=layout)
    return script_of(
        recorder.nodes, recorder.call("aten.relu.default", x), subject=a_subject(inputs=(an_input(layout),))
    )


def case_training_runs_forward_and_backward() -> str:
    recorder = Recorder()
    x = recorder.convolution(recorder.placeholder(IMAGES), (64, 3, 3, 3), FEATURES)
    recorder.call("aten.add_.Tensor", f"{recorder.placeholder((), dtype='int64')}, 1", (), dtype="int64")
    x = recorder.batch_norm(x, 64, FEATURES, training=True)
    subject = a_subject(mode="training", inputs=(an_input(contiguous(IMAGES)),))
    return script_of(recorder.nodes, x, subject=subject)


@for_each("recipe", [None, Recipe(kind="file", source="net.py", attribute="Net", made_by="call", inputs="get_inputs")])
def test_a_default_that_computes_something_else_is_compared_with_eager_by_its_values(recipe: Recipe | None) -> None:
    nodes, output = a_chain(2)
    wrong = Equivalence(status="different", max_abs_error=7.07, relative_error=1.0, tolerance=0.2, reference="float64")
    finding = Finding(code="LD402", rule="outputs-differ", severity="error", configuration="inductor", message="")
    subject = a_subject(mode="training", inputs=(an_input(contiguous(IMAGES)),), recipe=recipe)
    record = a_record(nodes, output, findings=(finding,), subject=subject)
    trials = (record.trials[0], a_builtin("inductor", equivalence=wrong), record.trials[2])
    source = None if recipe is None else "file"
    reproducer = build_reproducer(msgspec.structs.replace(record, trials=trials), source)

    compile(reproducer.script, "reproducer", "exec")
    assert reproducer.title == "LD402 outputs-differ: inductor against eager"
    assert "outputs or gradients differ by up to 7.07." in reproducer.script
    assert 'found |= {f"gradient of {name}": grad' in reproducer.script
    limit = 0.02 if recipe is None else 0.2
    assert f"wrong += not difference <= {limit} * right.abs().max().item()\n" in reproducer.script
    assert "timeit" not in reproducer.script

    nothing_known = msgspec.structs.replace(wrong, max_abs_error=None, tolerance=None)  # as where all is NaN
    trials = (record.trials[0], a_builtin("inductor", equivalence=nothing_known), record.trials[2])
    script = build_reproducer(msgspec.structs.replace(record, trials=trials)).script
    assert "0.02 * right.abs().max().item()" in script
    assert "recorded: by an unknown amount" in script


def case_a_gpu_is_synchronized_and_its_kernels_counted_by_name() -> str:
    nodes, output = a_chain(2)
    record = a_record(nodes, output, subject=a_subject(device="cuda", inputs=(an_input(contiguous(IMAGES)),)))
    names = ("void cudnn::ops::nchwToNhwcKernel<float>", "sm90_xmma_fprop")
    trials = (record.trials[0], a_builtin("inductor", *names), record.trials[2])
    return build_reproducer(msgspec.structs.replace(record, trials=trials)).script


def a_deep_network(depth: int = 30) -> tuple[list[FxNode], str]:
    """Blocks that all differ, so that no loop shortens them; each in a module of its own."""
    recorder, x = begun(IMAGES)
    for number in range(depth):
        shape = (4, 65 + number, 56, 56)
        x = recorder.convolution(x, (65 + number, 64 + number if number else 3, 3, 3), shape)
        x = recorder.call("aten.relu.default", recorder.batch_norm(x, 65 + number, shape), shape)
        recorder.nodes[-1] = msgspec.structs.replace(recorder.nodes[-1], module=f"secret.{number}")
    return recorder.nodes, x


def a_recipe(**changes: object) -> Recipe:
    return Recipe(**{"kind": "file", "source": "net.py", "attribute": "Model", "made_by": "call", **changes})  # type: ignore[arg-type]


FROM_THE_FILE = Reproduction(source="file", printed="", reproduced=None)


def from_its_own_file(recipe: Recipe, **changes: object) -> str:
    subject = a_subject(**{"inputs": (an_input(contiguous(IMAGES)),), "recipe": recipe, **changes})  # type: ignore[arg-type]
    return script_of(*a_chain(2), subject=subject, reproduction=FROM_THE_FILE)


def case_a_long_model_is_loaded_from_its_own_file() -> str:
    subject = a_subject(inputs=(an_input(contiguous(IMAGES)),), recipe=a_recipe(inputs="get_inputs"))
    return script_of(*a_deep_network(400), subject=subject)


def case_a_long_model_that_was_no_file_has_none() -> str:
    return reason_of(a_record(*a_deep_network(400)))


def case_a_class_with_arguments_and_inputs_of_two_ranks() -> str:
    inputs = (an_input(contiguous(IMAGES)), an_input(channels_last((2, 3, 4, 8, 8))))
    recipe = a_recipe(made_by="call_with_init_inputs", inputs="example_inputs", dtype="bfloat16")
    return from_its_own_file(recipe, inputs=inputs, mode="training")


@for_each(
    ("recipe", "line"),
    [
        (a_recipe(kind="module", source="package.net", attribute="net.body", made_by="is"), "model = source.net.body"),
        (a_recipe(kind="module", source="package.net"), "import package.net as source"),
        (a_recipe(made_by="call_for_both", attribute="make"), "model, inputs = source.make()"),
        (a_recipe(kind="exported", source="net.pt2", attribute=""), "args, kwargs = source.example_inputs"),
        (a_recipe(has_random_inputs=True), 'kwargs = {"x": torch.randn(4, 3, 56, 56)}'),
        (
            a_recipe(kind="zoo", source="timm", attribute="resnet18", has_random_inputs=True),
            'model = timm.create_model("resnet18", pretrained=False)',
        ),
        (
            a_recipe(kind="zoo", source="torchvision", attribute="resnet18", has_random_inputs=True),
            "import torchvision",
        ),
        (
            a_recipe(kind="zoo", source="transformers", attribute="RegNetModel", has_random_inputs=True),
            "model = transformers.RegNetModel(transformers.RegNetModel.config_class())",
        ),
        (
            a_recipe(kind="zoo", source="transformers", attribute="RegNetConfig", made_by="is", has_random_inputs=True),
            "model = transformers.AutoModel.from_config(transformers.RegNetConfig())",
        ),
        (
            a_recipe(kind="zoo", source="diffusers", attribute="VAE", config=("a=(8, 16)", "b='c'"), inputs=None),
            "model = diffusers.VAE(a=(8, 16), b='c')",
        ),
        (
            a_recipe(kind="zoo", source="timm", attribute="resnet18", config=("in_chans=4",), has_random_inputs=True),
            'model = timm.create_model("resnet18", pretrained=False, in_chans=4)',
        ),
    ],
)
def test_every_kind_of_target_can_be_loaded_again(recipe: Recipe, line: str) -> None:
    script = from_its_own_file(recipe)

    compile(script, "script", "exec")
    assert line in script.splitlines()


@for_each("recipe", [a_recipe(), a_recipe(kind="exported", source="net.pt2", attribute="")])
def test_a_script_without_the_file_of_its_model_says_so(recipe: Recipe, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(from_its_own_file(recipe))

    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    missing = f"{tmp_path / recipe.source} is not there: put the file of the model beside this script"
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (1, "", missing)


@for_each(
    "changes",
    [
        {"source": 'net.py"); import os'},
        {"source": "../net.py"},
        {"source": "net\n.py"},
        {"attribute": "Model(); x"},
        {"attribute": "lambda"},
        {"inputs": "get_inputs()"},
        {"dtype": "float32); x("},
        {"kind": "module", "source": "os; x"},
        {"kind": "zoo", "source": "timm", "attribute": '")'},
        {"kind": "zoo", "source": "pickle", "attribute": "load"},
        {"kind": "zoo", "source": "transformers", "attribute": "a/b"},
        {"kind": "zoo", "source": "diffusers", "attribute": "VAE", "config": ("a=__import__('os')",)},
        {"kind": "zoo", "source": "diffusers", "attribute": "VAE", "config": ("a) or x(b=1",)},
        {"kind": "exported", "source": '".pt2'},
    ],
)
def test_hostile_recipes_reach_no_script(changes: dict[str, object]) -> None:
    subject = a_subject(inputs=(an_input(contiguous(IMAGES)),), recipe=a_recipe(**changes))

    reason = reason_of(msgspec.structs.replace(a_record(*a_chain(2), subject=subject), reproduction=FROM_THE_FILE))
    assert "cannot be written" in reason or "no script is written for" in reason


def test_what_was_run_is_what_is_handed_out_with_what_it_printed() -> None:
    nodes, output = a_chain(2)
    subject = a_subject(inputs=(an_input(contiguous(IMAGES)),), recipe=a_recipe(inputs="get_inputs"))
    record = a_record(nodes, output, subject=subject)
    assert build_reproducer(record).source == "operations"

    done = Reproduction(source="file", printed="verdict: reproduced\n\x1b[1m", reproduced=True)
    run = msgspec.structs.replace(record, reproduction=done)
    assert build_reproducer(run).source == "file"
    assert render_reproducer(run).endswith(
        "\n# Before it was handed out it printed:\n# verdict: reproduced\n# \\x1b[1m\n"
    )


@pytest.mark.parametrize("depth", [1, 2, 3, 10])
def test_no_reproducer_is_longer_than_promised(depth: int) -> None:
    assert code_line_count(script_of(*a_deep_network(depth))) <= MOST_CODE_LINES


def a_child(found: list[object]) -> SimpleNamespace:
    """A process that says more than asked for, and then what it found."""
    printed = b"and\n" + json.dumps(found).encode()
    said = [b"the model prints\n", b"ready\n"]
    return SimpleNamespace(stdout=said, communicate=lambda: (printed, None), returncode=0)


@for_each(("ratios", "status"), [([1.3, 2.0, 1.25], 0), ([1.0, 1.0, 1.3], 1)])
def test_a_script_takes_the_middle_ratio_of_three_processes_in_turns(
    ratios: list[float], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_of(*a_chain(2))
    recorded = {"inductor": [4, 0], "inductor-channels-last": [1, 0]}
    assert str(recorded).replace("'", '"') in script
    started: list[str] = []

    def start(words: list[str], **options: object) -> SimpleNamespace:
        started.append(words[-1])
        seconds = 1e-3 if len(started) % 2 else 1e-3 / ratios[len(started) // 2 - 1]
        return a_child([seconds, recorded[words[-1]]])

    monkeypatch.setattr(subprocess, "Popen", start)
    modules = {"json": json, "os": os, "statistics": statistics, "subprocess": subprocess, "sys": sys}
    names = {**modules, "__file__": "reproducer.py"}
    with pytest.raises(SystemExit) as ended:
        exec(script[script.index("recorded = ") :], names)

    assert (started, int(ended.value.code or 0)) == ([*recorded] * 3, status)


def test_without_a_verdict_it_compares_with_what_converts_less_and_starts_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison = a_comparison(a_ratio("eager", 1.2, 0.5), a_ratio("inductor-freezing", 0.9, 0.5))
    summaries = {
        count: kernels(
            *(a_conversion(f"reorder {number}") for number in range(count)),
            count=count,
            kernels=(a_kernel("reorder"),) * count,
        )
        for count in (0, 2)
    }
    nodes, output = a_chain(2)
    trials = (
        a_builtin("eager", nodes=nodes, output=output, kernels=summaries[2]),
        a_builtin("inductor", kernels=summaries[2]),
        a_builtin("inductor-freezing", kernels=summaries[0]),
    )
    record = msgspec.structs.replace(a_record(nodes, output, comparison=comparison, recommendation=None), trials=trials)
    script = build_reproducer(record).script
    recorded = {"inductor": [2, 0], "inductor-freezing": [0, 0]}
    assert str(recorded).replace("'", '"') in script
    started: list[str] = []

    def start(words: list[str], **options: object) -> SimpleNamespace:
        started.append(words[-1])
        return a_child([1e-3, recorded[words[-1]]])

    monkeypatch.setattr(subprocess, "Popen", start)
    names = {"json": json, "os": os, "subprocess": subprocess, "sys": sys, "__file__": "reproducer.py"}
    with pytest.raises(SystemExit) as ended:
        exec(script[script.index("recorded = ") :], names)

    assert (started, int(ended.value.code or 0)) == ([*recorded], 0)


def test_the_same_record_gives_the_same_text() -> None:
    record = a_record(*a_chain(3))

    assert render_reproducer(record) == render_reproducer(from_json(to_json(record)))


def test_a_cure_of_modules_is_left_out_where_there_are_none() -> None:
    record = a_record(*a_chain(3))
    base = record.trials[-1]
    cured = msgspec.structs.replace(
        base.configuration, name="inductor-channels-last+flat-conv3d", cures=(Cure(name="flat-conv3d", how="x"),)
    )
    trials = (*record.trials, msgspec.structs.replace(base, configuration=cured))
    advised = msgspec.structs.replace(record, trials=trials, recommendation=a_recommendation(cured.name))

    text = build_reproducer(advised).script

    assert "flat-conv3d" not in text
    assert '"inductor-channels-last"' in text


@for_each("story", STORIES)
def test_every_story_gives_python(story: str) -> None:
    reproducer = build_reproducer(STORIES[story]())

    compile(reproducer.script, story, "exec")
    assert reproducer.is_runnable == (reproducer.reason is None)


def test_a_script_is_clean_to_the_linter(tmp_path: Path) -> None:
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if ruff is None:
        pytest.skip("ruff is not installed")
    for name, nodes in {"chain": a_chain(4), "network": a_network(), "deep": a_deep_network(10)}.items():
        (tmp_path / f"{name}.py").write_text(script_of(*nodes), encoding="utf-8")
    rules = "E,F,W,I,B,UP,C4,PIE,RUF"
    done = subprocess.run(
        [ruff, "check", "--isolated", "--line-length", "120", "--select", rules, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_traces_and_targets_say_why_there_is_none() -> None:
    assert "a recorded trace does not hold" in reason_of(a_trace(recorded()))
    nodes, output = a_chain(2)
    assert "was not there" in reason_of(a_record(nodes, output, subject=a_subject(target="cuda:90")))


def case_without_the_eager_configuration_there_is_none() -> str:
    record = a_record(*a_chain(2))
    return reason_of(msgspec.structs.replace(record, trials=record.trials[1:]))


def case_with_one_configuration_there_is_none() -> str:
    record = a_record(*a_chain(2))
    return reason_of(msgspec.structs.replace(record, trials=record.trials[:1]))


HOSTILE = (
    "__import__('os').system('x')",
    "value_0); __import__('os'",
    "value_0) + f(",
    "*[value_0]",
    "**{'a': value_0}",
    "value_0.__class__",
    "lambda: value_0",
    "value_0 if value_0 else value_0",
    "[value_0 for value_0 in value_0]",
    "f'{value_0}'",
    "'\"); import os; (\"'",
    "torch.load",
    "torch.float32.__class__",
    "value_0, b'x'",
    "value_0, 1j",
    "value_0, ...",
    "value_0, {1: 2}",
    "(value_0 := 1)",
    "value_0\n",
    "value_0 #",
    "",
    "value_0" * 1000,
    "-" * 3000 + "1",
    "(" * 300 + "1" + ")" * 300,
)


@for_each("text", HOSTILE)
def test_hostile_arguments_reach_no_script(text: str) -> None:
    recorder, x = begun(IMAGES)
    name = recorder.call("aten.relu.default", x)
    recorder.nodes[-1] = msgspec.structs.replace(recorder.nodes[-1], arguments=text)
    reproducer = build_reproducer(a_record(recorder.nodes, name))

    if reproducer.is_runnable:  # read as harmless: nothing but the input came through
        assert text.strip(" #\n") == "value_0"
        assert "nn.ReLU()" in reproducer.script
    else:
        assert reproducer.reason is not None
        assert "value_0" not in reproducer.script


@for_each(
    "target",
    [
        "aten.relu.default(x); __import__('os').system('x'); aten.relu.default",
        "aten.__class__.mro",
        "aten.relu.__globals__",
        "aten.import.default",
        "os.system.default",
        "aten.relu",
        "aten.relu.default\n",
        "aten.relué.default",
        "mine.relu.default",
        "getitem\n",
    ],
)
def test_hostile_targets_reach_no_script(target: str) -> None:
    recorder, x = begun(IMAGES)
    name = recorder.call("aten.relu.default", x)
    recorder.nodes[-1] = msgspec.structs.replace(recorder.nodes[-1], target=target)

    assert "not one of torch's own" in reason_of(a_record(recorder.nodes, name))


HOSTILE_NAME = '"); import os; os.system("x") #'


def test_hostile_names_everywhere_leave_the_script_as_it_is() -> None:
    nodes, output = a_chain(2)
    finding = Finding(
        code="LD101\n", rule=HOSTILE_NAME, severity="error", configuration="inductor", message=HOSTILE_NAME
    )
    hostile = a_record(
        [msgspec.structs.replace(node, module=HOSTILE_NAME, called=HOSTILE_NAME) for node in nodes],
        output,
        findings=(finding,),
        environment=an_environment(torch='2.13"""; import os', device_name=HOSTILE_NAME),
        layoutdoctor_version=HOSTILE_NAME,
        subject=a_subject(name=HOSTILE_NAME, model=HOSTILE_NAME, inputs=(an_input(contiguous(IMAGES)),)),
    )
    script = render_reproducer(hostile)

    assert HOSTILE_NAME not in script
    assert "import os; os" not in script
    plain = script_of(nodes, output)
    assert ast.dump(ast.parse(script.split('"""', 2)[2])) == ast.dump(ast.parse(plain.split('"""', 2)[2]))


def a_record_edited_to_nonsense_is_told_in_a_sentence(target: str) -> str:
    recorder, x = begun(IMAGES)
    name = recorder.call(target, x)
    return reason_of(a_record(recorder.nodes, name))


def case_symbolic_sizes_have_no_reproducer() -> str:
    recorder, x = begun(IMAGES, layout=strided_layout(("s0", 3, 8, 8), (192, 64, 8, 1)))
    subject = a_subject(inputs=(an_input(strided_layout(("s0", 3, 8, 8), (192, 64, 8, 1))),))
    name = recorder.call("aten.relu.default", x)
    return reason_of(a_record(recorder.nodes, name, subject=subject))


def case_a_change_in_place_that_nothing_reads_has_no_reproducer() -> str:
    recorder, x = begun(IMAGES)
    part = recorder.call("aten.slice.Tensor", f"{x}, 0, 0, 1", (1, 3, 56, 56))
    recorder.call("aten.add_.Tensor", f"{part}, 1.0", (1, 3, 56, 56))
    return reason_of(a_record(recorder.nodes, recorder.call("aten.relu.default", x)))


CASES = {
    **{name.removeprefix("case_").replace("_", " "): case() for name, case in globals().items() if name[:5] == "case_"},
    **{
        f"nonsense: {target}": a_record_edited_to_nonsense_is_told_in_a_sentence(target)
        for target in ("aten.reflection_pad2d.default", "aten.upsample_nearest2d.default", "getitem")
    },
}


def test_every_case_is_written_as_reviewed(update_golden: bool) -> None:
    for script in CASES.values():
        assert script.startswith("no reproducer: ") or compile(script, "reproducer", "exec")
    told = {name: telling(script) for name, script in CASES.items()}
    reviewed.check("reproducers_report", told, update=update_golden)
