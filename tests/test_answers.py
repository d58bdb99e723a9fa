"""The pages of docs/answers: their form, and that what they show is what their commands print."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutdoctor.__main__ import build_parser, split_words, with_command

ROOT = Path(__file__).parents[1]
answers = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "answers.py")))
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in answers.PAGES}
TIMED = {"pytorch_126708", "pytorch_77821"}


def loaded(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "answers" / f"{name}.py"))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_page_has_question_command_report_and_a_short_answer(name: str) -> None:
    text = TEXTS[name]
    answer = re.search(r"\n## Answer\n\n(.+?)\n## Not checked here\n\n.+", text, re.DOTALL)

    assert len(text.encode()) < 4_000
    assert re.findall(r"^## .+", text, re.MULTILINE) == ["## Question", "## Model", "## Answer", "## Not checked here"]
    assert answer is not None
    assert len(answer[1].split()) <= 150
    assert text.count("<!-- report") == text.count("<!-- end of report -->") == len(answers.GROUP.findall(text))
    for line in answers.commands_of(text):
        words, _ = split_words(with_command(line))
        build_parser(words[0]).parse_args(words)


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "answers" / "README.md").read_text(encoding="utf-8")

    assert sorted(re.findall(r"\]\((\w+)\.md\)", index)) == sorted(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEXTS.keys() - TIMED))
def test_what_nothing_timed_prints_is_on_the_page(name: str) -> None:
    assert answers.renewed(TEXTS[name]) == TEXTS[name]


@pytest.mark.thorough
def test_the_lines_of_the_report_convert_a_model_that_one_call_refuses() -> None:
    import torch

    names = loaded("pytorch_77821")
    (pasted,) = re.findall(r"^1\..+\n((?:    .+\n)+)", TEXTS["pytorch_77821"], re.MULTILINE)
    model, (x,) = names["Model"](), names["get_inputs"]()
    expected = model(x)
    used = {"torch": torch, "model": model, "x": x}

    exec("\n".join(line[4:] for line in pasted.splitlines() if "torch.compile(" not in line), used)

    assert model.frames.weight.is_contiguous(memory_format=torch.channels_last)
    assert used["y"].is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(used["y"], expected)
    with pytest.raises(RuntimeError, match="required rank 4 tensor to use channels_last format"):
        model.to(memory_format=torch.channels_last)


@pytest.mark.thorough
def test_the_line_for_the_transformer_runs() -> None:
    import torch

    names = loaded("diffusers_12728")
    (line,) = re.findall(r"```python\n(.+)\n```", TEXTS["diffusers_12728"])
    used = {"torch": torch, "model": names["Model"]()}

    exec(line, used)

    assert used["model"].patch_embedding.weight.is_contiguous(memory_format=torch.channels_last_3d)
    with pytest.raises(RuntimeError, match="required rank 4 tensor"):
        names["channels_last"]()
