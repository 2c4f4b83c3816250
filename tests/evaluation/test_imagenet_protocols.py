"""ImageNet's relatives, each on a handful of images whose figures are worked out by hand."""

import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitlab
from conftest import call
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.imagenet_protocols import (
    examine,
    imagenet,
    objectnet,
    objects,
    outputs_of,
    trimmed,
)
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.models.packed import Packed

WNIDS = imagenet()


def examined(model: Model, data: Path, protocol: Any, **how: Any) -> dict[str, Any]:
    """The figures of a protocol."""
    return examine(model, str(data), protocol, Compute(workers=0), **how)


class Rigged(Model):
    """A model whose answers are written down: an image of gray level g gets row g of a table."""

    def __init__(self, outputs: int, labels: Sequence[str] = ()) -> None:
        nn.Module.__init__(self)
        self.config = ViTConfig(
            width=8, depth=1, heads=1, mlp=8, patch=4, image_size=4, channels=1,
            classes=outputs, labels=tuple(labels),
        )  # fmt: skip
        self.provenance, self.source = {}, ""
        self.table = nn.Parameter(torch.zeros(256, outputs))

    def answer(self, level: int, *best_first: int) -> None:
        """The outputs that images of this gray level get most, and in which order."""
        for place, output in enumerate(best_first):
            with torch.no_grad():
                self.table[level, output] = 20 - place

    def features(self, images: Tensor | Packed) -> Tensor:
        assert isinstance(images, Tensor)
        return (images.mean((1, 2, 3)) * 0.5 + 0.5) * 255

    def scores(self, features: Tensor) -> Tensor:
        return self.table[features.round().long()]


def gray(file: Path, level: int, side: int = 4) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), level, np.uint8)).save(file, "PNG")
    return file


def place(wnid: str) -> int:
    return WNIDS.index(wnid)


def info(name: str) -> list[str]:
    return (files("timm.data") / "_info" / name).read_text().split()


def test_the_lists_of_classes_are_those_of_timm() -> None:
    assert list(WNIDS) == info("imagenet_synsets.txt") == sorted(WNIDS)
    assert list(imagenet("a")) == info("imagenet_a_synsets.txt")
    assert list(imagenet("r")) == info("imagenet_r_synsets.txt")


def test_imagenet_counts_the_class_of_the_folder(tmp_path: Path) -> None:
    model = Rigged(1000)
    model.answer(10, 7)
    model.answer(20, 3, 1, 2, 4, 7)  # fifth
    model.answer(30, 3, 1, 2, 4, 5, 7)  # sixth
    for level in (10, 20, 30):
        gray(tmp_path / "val" / WNIDS[7] / f"{level}.png", level)
    gray(tmp_path / "val" / WNIDS[8] / "other.png", 10)
    result = examined(model, tmp_path, "imagenet")
    assert (result["accuracy"], result["top5"], result["images"]) == (0.25, 0.5, 4)
    assert (result["left_out"], result["competing"]) == (0, 1000)
    assert result["notes"] == [
        f"{model.config.name} does not name its classes by WordNet ids: taken in ImageNet's order",
        f"{tmp_path} has images of 2 of the 1,000 classes",
        "4 images; ImageNet has 50,000",
    ]


def test_outputs_follow_the_names_of_a_model_wherever_they_are(tmp_path: Path) -> None:
    names = ["cat", *reversed(WNIDS)]
    model = Rigged(1001, names)
    model.answer(10, names.index(WNIDS[7]))
    model.answer(20, 0, names.index(WNIDS[8]))  # "cat" does not compete
    gray(tmp_path / WNIDS[7] / "a.png", 10)
    gray(tmp_path / WNIDS[8] / "b.png", 20)
    result = examined(model, tmp_path, "imagenet")
    assert result["accuracy"] == 1.0
    assert result["nll"] == pytest.approx(np.log(1 + 999 * np.exp(-20)) / 2 + np.log(
        1 + 999 * np.exp(-19)) / 2)  # fmt: skip
    assert model.config.classes == 1001
    assert model.training


def test_models_of_other_classes_are_refused() -> None:
    for labels, count, message in (
        ((), 21_843, "m has 21,843 classes that are not named by WordNet ids, so it is unknown "
         "which are ImageNet's: name them so, or use 1,000 in ImageNet's order"),
        (WNIDS[:900], 900, "m lacks 100 of the 1,000 classes that compete, such as n04562935: "
         "outputs=shared leaves them out"),
    ):  # fmt: skip
        with pytest.raises(OptionError) as error:
            outputs_of(labels, count, WNIDS, "m")
        assert str(error.value) == message


def test_real_counts_any_of_the_labels_as_timm_does(tmp_path: Path) -> None:
    from timm.data.real_labels import RealLabelsImagenet

    generator = np.random.default_rng(0)
    answers = [generator.choice(1000, size=number % 4, replace=False) for number in range(20)]
    file = tmp_path / "real.json"
    file.write_text(json.dumps([own.tolist() for own in answers]))
    model = Rigged(1000)
    with torch.no_grad():
        model.table.normal_(generator=torch.Generator().manual_seed(1))
        for number in range(0, 20, 3):  # so that some are right
            model.table[number, answers[number]] += 2.5
    names = [f"ILSVRC2012_val_{number + 1:08d}.JPEG" for number in range(20)]
    for number, name in enumerate(names):  # in folders whose order is not that of the numbers
        gray(tmp_path / "images" / WNIDS[-number] / name, number)
    oracle = RealLabelsImagenet(names, str(file))
    oracle.add_result(model.table[:20].detach())
    result = examined(model, tmp_path / "images", "real", real_labels=str(file))
    assert result["accuracy"] == pytest.approx(oracle.get_accuracy(1) / 100)
    assert result["top5"] == pytest.approx(oracle.get_accuracy(5) / 100)
    assert 0 < result["accuracy"] < result["top5"] < 1
    assert (result["images"], result["left_out"]) == (15, 5)
    # one of several right classes is no truth to count classes by: guessing gives an AUROC of 77%
    of_classes = ("auroc", "balanced_", "kappa", "macro_", "mcc")
    for figures in (result, result["intervals"]):
        assert not [key for key in figures if key.startswith(of_classes)]
    assert {"top5", "nll", "ece", "intervals"} <= {*result}


def test_real_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    images, file = tmp_path / "images", tmp_path / "real.json"
    gray(images / "ILSVRC2012_val_00000003.JPEG", 1)
    model = Rigged(1000)

    def message(labels: str = str(file)) -> str:
        with pytest.raises(DataError) as error:
            examined(model, images, "real", real_labels=labels)
        return str(error.value)

    assert message("") == (
        "ReaL needs its labels: pass --real-labels real.json, a file of "
        "google-research/reassessed-imagenet"
    )
    assert message() == f"cannot read {file}: [Errno 2] No such file or directory: '{file}'"
    for text in ("{}", "[[1], 2]", "[[1000]]", "[[true]]"):
        file.write_text(text)
        assert message() == f"{file} is not a list of lists of numbers from 0 to 999"
    file.write_text("[[1], [2]]")
    name = images / "ILSVRC2012_val_00000003.JPEG"
    assert message().startswith(f"{name} is not one of the 2 images that have ReaL labels")
    file.write_text("[[1], [2], []]")
    assert message() == f"no image of {images} has a label in {file}"
    with pytest.raises(DataError, match="no such folder: gone"):
        examined(model, Path("gone"), "real", real_labels=str(file))
    with pytest.raises(OptionError, match="real_labels applies only with protocol=real, not a"):
        examined(model, images, "a", real_labels="real.json")


def v2(root: Path, levels: dict[int, int]) -> Path:
    for number, level in levels.items():
        gray(root / str(number) / "x.jpeg", level)
    return root


def test_v2_folders_are_numbers_and_not_in_their_order_as_words(tmp_path: Path) -> None:
    model = Rigged(1000)
    for number in (0, 2, 10, 100):
        model.answer(number, number)
    root = v2(tmp_path / "imagenetv2", {0: 0, 2: 2, 10: 10, 100: 100, 999: 2})
    result = examined(model, root, "v2")
    assert (result["accuracy"], result["images"]) == (0.8, 5)  # class 999 is taken for a 2
    (root / "1000").mkdir()
    gray(root / "1000" / "x.png", 1)
    with pytest.raises(DataError) as error:
        examined(model, root, "v2")
    assert str(error.value) == (
        f"{root / '1000'} is not named by a class number from 0 to 999: name the folder of one "
        "variant of ImageNet-V2"
    )


def test_a_model_of_some_classes_is_asked_about_those_alone(tmp_path: Path) -> None:
    root = v2(tmp_path / "imagenetv2", {2: 2, 10: 10, 100: 100, 999: 2})
    some = Rigged(3, [WNIDS[100], "a class of our own", WNIDS[2]])
    some.answer(2, 1, 2)
    some.answer(100, 2, 0)
    found = examined(some, root, "v2", outputs="shared")
    assert (found["accuracy"], found["images"]) == (0.5, 2)  # 100 is taken for a 2
    assert (found["competing"], found["left_out"]) == (2, 2)
    with pytest.raises(OptionError, match="lacks 998 of the 1,000 classes that compete"):
        examined(some, root, "v2")
    with pytest.raises(DataError, match="no image is of a class that the model has"):
        other = Rigged(2, WNIDS[5:7])
        examined(other, root, "v2", outputs="shared")


def test_a_run_on_numbered_folders_has_them_in_the_order_of_words(tmp_path: Path) -> None:
    root = v2(tmp_path / "imagenetv2", {2: 2, 10: 10, 999: 9})
    names = sorted(map(str, range(1000)))
    model = Rigged(1000, names)
    for level, number in ((2, 2), (10, 10), (9, 999)):
        model.answer(level, names.index(str(number)))
    assert examined(model, root, "v2")["accuracy"] == 1


@pytest.mark.parametrize("protocol", ["a", "r"])
def test_in_a_and_r_only_their_classes_compete(tmp_path: Path, protocol: str) -> None:
    own = imagenet(protocol)
    outside = next(number for number, wnid in enumerate(WNIDS) if wnid not in own)
    model = Rigged(1000)
    model.answer(10, outside, place(own[3]))
    model.answer(20, place(own[4]), place(own[3]))
    gray(tmp_path / own[3] / "a.png", 10)
    gray(tmp_path / own[3] / "b.png", 20)
    (tmp_path / "README.txt").write_text("as in the archive")
    result = examined(model, tmp_path, protocol)
    assert (result["accuracy"], result["top5"], result["competing"]) == (0.5, 1.0, 200)
    every = examined(model, tmp_path, protocol, outputs="all")
    assert (every["accuracy"], every["top5"], every["competing"]) == (0.0, 1.0, 1000)
    gray(tmp_path / WNIDS[outside] / "c.png", 1)
    with pytest.raises(DataError, match=f"'{WNIDS[outside]}', which is not one of the 200 of"):
        examined(model, tmp_path, protocol)


def test_sketch_and_data_in_tables(tmp_path: Path) -> None:
    import datasets

    names = datasets.ClassLabel(names=[f"class {number}" for number in range(1000)])
    model = Rigged(1000)
    model.answer(9, 999)
    paths = [str(gray(tmp_path / f"{level}.png", level)) for level in (9, 9, 8, 8)]
    table = datasets.Dataset.from_dict(
        {"image": paths, "label": [999] * 4},
        features=datasets.Features({"image": datasets.Image(), "label": names}),
    )
    table.to_parquet(str(tmp_path / "test.parquet"))
    result = examined(model, tmp_path / "test.parquet", "sketch")
    assert (result["accuracy"], result["images"]) == (0.5, 4)
    assert any("taken in ImageNet's order" in note for note in result["notes"])
    assert os.environ["HF_DATASETS_OFFLINE"] == "1"


def test_evaluate_takes_a_protocol_and_nothing_that_contradicts_it(tmp_path: Path) -> None:
    model = Rigged(1000)
    model.answer(10, 7)
    gray(tmp_path / WNIDS[7] / "a.png", 10)
    gray(tmp_path / WNIDS[8] / "b.png", 10)
    result = vitlab.evaluate(model, str(tmp_path), protocol="imagenet", workers=0)
    assert (result["accuracy"], result["balanced_accuracy"]) == (0.5, 0.5)
    assert result["intervals"] == {}  # of two images
    flipped = vitlab.evaluate(model, str(tmp_path), protocol="imagenet", flips=True, workers=0)
    assert flipped["accuracy"] == 0.5
    for given in ({"split": "test"}, {"calibrate": True}, {"out": "rows.csv"}):
        with pytest.raises(OptionError, match=f"{next(iter(given))} applies only without protocol"):
            vitlab.evaluate(model, str(tmp_path), protocol="imagenet", **given)
    for given in ({"real_labels": "real.json"}, {"outputs": "all"}):
        with pytest.raises(OptionError, match="apply only with a protocol"):
            vitlab.evaluate(model, str(tmp_path), **given)


def test_the_command_prints_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = "ViT(width=8,depth=1,heads=1,mlp=8)/4"
    vitlab.save(vitlab.create(shape, classes=1000, image_size=4), tmp_path / "model")
    line = f"evaluate {tmp_path}/model {v2(tmp_path / 'data', {5: 5, 6: 5})} --protocol v2"
    status, out, err = call(capsys, *line.split(), "--workers", "0", "--device", "cpu")
    assert status == 0
    assert all(word in out for word in ("accuracy", "competing"))
    assert "2 images; ImageNet-V2 has 10,000" in err


def test_objectnet_counts_any_class_of_the_folder_and_leaves_out_the_rest(tmp_path: Path) -> None:
    known, images, model = objectnet(), tmp_path / "objectnet-1.0" / "images", Rigged(1000)
    wnids = {wnid for own in known.values() for wnid in own}
    assert (len(known), len(wnids), wnids <= set(WNIDS)) == (113, 125, True)
    # the analog and the digital clock
    assert [place(wnid) for wnid in known["alarm_clock"]] == [409, 530]
    banana = place(known["banana"][0])
    model.answer(10, 530)  # the digital clock
    model.answer(20, 0, banana)  # a tench, which ObjectNet does not have; second, a banana
    model.answer(30, 409)
    for folder, level in (("alarm_clock", 10), ("banana", 20), ("banana", 30), ("air_freshener", 1),
                          ("zipper", 2)):  # fmt: skip
        gray(images / folder / f"{level}.png", level, side=8)
    result = examined(model, tmp_path, "objectnet")
    assert (result["accuracy"], result["top5"]) == (1 / 3, 2 / 3)
    assert (result["images"], result["left_out"], result["competing"]) == (3, 2, 1000)
    assert result["notes"][-1] == "3 images; ObjectNet has 18,574"
    shared = examined(model, images, "objectnet", outputs="shared")
    assert (shared["accuracy"], shared["top5"], shared["competing"]) == (2 / 3, 2 / 3, 125)
    with pytest.raises(DataError, match="has no folder of ObjectNet's, such as alarm_clock"):
        objects(str(gray(tmp_path / "else" / "cat" / "x.png", 1).parent.parent))


def test_objectnets_border_has_no_influence(tmp_path: Path) -> None:
    red = np.zeros((12, 16, 3), np.uint8)
    red[..., 0] = 255
    red[2:-2, 2:-2] = 77
    file = tmp_path / "banana" / "x.png"
    file.parent.mkdir()
    Image.fromarray(red).save(file)
    source = objects(str(tmp_path)).source
    image = source.image(0)
    assert image.shape() == (8, 12, 3)
    assert (image.decode(3) == 77).all()
    pixels, box = image.decode_box(3, lambda rows, columns: (0, 0, columns, rows), (4, 4))
    assert (pixels.shape, box) == ((8, 12, 3), (0, 0, 12, 8))
    assert trimmed(red).shape == (8, 12, 3)
    assert image.content() == file.read_bytes()
    assert image.compact(8, 90)[1] == "png"
    with pytest.raises(ImageError, match="an image of 4x9 pixels is nothing but border"):
        trimmed(np.zeros((4, 9, 3), np.uint8))
