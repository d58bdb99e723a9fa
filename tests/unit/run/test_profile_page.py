"""What docs/profile.md shows runs: the loop, and both callbacks with the libraries that they are for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

PAGE = Path(__file__).parents[3] / "docs" / "profile.md"
LOOP, HUGGING_FACE, LIGHTNING = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


def saved_steps(folder: Path) -> int:
    page = (folder / "layouts.html").read_text(encoding="utf-8")
    found = re.search(r"(\d+) of \d+ steps were recorded", page)
    assert found is not None
    return int(found[1])


@pytest.mark.compile
def test_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    seen = run(LOOP)["seen"]
    assert seen.summary["recorded_step_count"] == 5
    assert "5 of 8 steps were recorded" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()


class Images(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Forty images with a label each."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.full((3, 16, 16), index / 40), "labels": torch.tensor(index % 2)}


class Classifier(nn.Module):
    """Gives a loss, as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 2)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.head(self.conv(pixel_values.contiguous(memory_format=torch.channels_last)).mean((2, 3)))
        return {"loss": nn.functional.cross_entropy(found, labels), "logits": found}


@pytest.mark.slow
def test_the_callback_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    callback = run(HUGGING_FACE)["Layouts"]()
    arguments = transformers.TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    transformers.Trainer(Classifier(), arguments, train_dataset=Images(), callbacks=[callback]).train()
    assert saved_steps(tmp_path) == 5
    assert callback.seen.summary["conversion_count_per_step"] >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_callback_of_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = run(LIGHTNING)["Layouts"]()
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(Images(), batch_size=4))
    assert saved_steps(tmp_path) == 5
    assert callback.seen.summary["conversion_count_per_step"] >= 1
