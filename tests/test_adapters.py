"""Models behind the surface of transformers."""

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from vitlab.errors import PackageError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


class Pairs(torch.utils.data.Dataset[dict[str, Any]]):
    """Random images, each class equally often, as transformers' collator takes them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 32, 32, generator=generator), "labels": index % 3}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_trainer_of_transformers_trains_saves_and_goes_on(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(2)
    model = vitlab.create(
        "ViT(width=16,depth=2,heads=2,mlp=16)/8",
        3,
        32,
        generator=generator,
        positions="rope",  # whose tables are not stored
        labels=("ant", "bee", "cat"),
    )
    before = model.head.classify.weight.clone()
    own = vitlab.adapters.transformers(model)
    assert own.config.id2label == {0: "ant", 1: "bee", 2: "cat"}

    def train(steps: int, **how: Any) -> None:
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=2, per_device_train_batch_size=4,
            report_to=[], use_cpu=True, disable_tqdm=True, activation_checkpointing=True,
            dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        transformers.Trainer(own, arguments, train_dataset=Pairs()).train(**how)

    train(2)
    train(4, resume_from_checkpoint=True)
    assert not torch.equal(before, model.head.classify.weight), "the weights are shared"
    model.eval()
    folder = tmp_path / "checkpoint-4"
    back = vitlab.load(folder)
    assert back.config == model.config
    again = type(own).from_pretrained(folder).eval()
    saved = vitlab.load(vitlab.save(own, tmp_path / "saved"))
    autos = (transformers.AutoModel, transformers.AutoModelForImageClassification)
    found = [each.from_pretrained(folder).eval() for each in autos]
    assert {type(each) for each in found} == {type(own)}
    for other in (back(IMAGES), saved(IMAGES), *(e(IMAGES).logits for e in (again, *found))):
        assert torch.equal(other, model(IMAGES))


def test_outputs_in_the_form_of_transformers() -> None:
    pytest.importorskip("transformers")
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 3, 32).eval()
    own = vitlab.adapters.transformers(model)
    labels = torch.tensor([0, 2])
    out = own(IMAGES, labels=labels, output_hidden_states=True, output_attentions=True)
    expected = nn.functional.cross_entropy(model(IMAGES), labels)
    torch.testing.assert_close(out.loss, expected)
    assert [each.shape for each in out.hidden_states] == [(2, 17, 16)] * 3
    assert [each.shape for each in out.attentions] == [(2, 2, 17, 17)] * 2
    loss, logits = own(IMAGES, labels=labels, return_dict=False)
    assert torch.equal(logits, out.logits)
    assert loss == out.loss


def test_without_transformers_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 32)
    with pytest.raises(PackageError, match="pip install transformers"):
        vitlab.adapters.transformers(model)
