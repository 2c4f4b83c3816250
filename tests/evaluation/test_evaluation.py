"""Which images a model is evaluated on, and the answers about single images."""

import shutil
from pathlib import Path

import pytest

import vitlab
from conftest import photo, photo_folder
from evaluation.small_models import noisy
from vitlab.data.holdout import fingerprint
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError


@pytest.fixture
def model() -> vitlab.VisionTransformer:
    return noisy(image_size=16, labels=("blue", "green", "red"))


def test_unsplit_data_is_evaluated_whole_unless_the_model_learned_from_it(
    model: vitlab.VisionTransformer, photos: Path
) -> None:
    data = str(photos)
    whole = vitlab.evaluate(model, data, workers=0)
    assert (whole["split"], whole["images"]) == ("all", 60)
    whole_source = open_to_learn(data).whole
    assert whole_source is not None
    model.provenance = {"held_out": 0.1, "fingerprint": fingerprint(whole_source)}
    counts = {
        split: vitlab.evaluate(model, data, split=split, workers=0)["images"]
        for split in ("auto", "train", "test", "all")
    }
    assert counts == {"auto": 6, "train": 54, "test": 6, "all": 60}
    (photos / "red" / "007.png").unlink()  # other data now
    assert vitlab.evaluate(model, data, workers=0)["images"] == 59
    shutil.rmtree(photos / "red")  # any number of classes and images can be evaluated
    shutil.rmtree(photos / "blue")
    for number in range(1, 20):
        (photos / "green" / f"{number:03d}.png").unlink()
    assert vitlab.evaluate(model, data, workers=0)["images"] == 1


def test_splits_of_the_data_are_used_by_name(
    model: vitlab.VisionTransformer, tmp_path: Path
) -> None:
    for split, count in (("train", 4), ("val", 2), ("test", 1)):
        photo_folder(tmp_path / split, dict.fromkeys(("blue", "green", "red"), count))
    data = str(tmp_path)
    for split, images in (("auto", 3), ("test", 3), ("validation", 6), ("train", 12)):
        result = vitlab.evaluate(model, data, split=split, workers=0)
        assert (result["split"], result["images"]) == ("test" if split == "auto" else split, images)
    with pytest.raises(DataError, match="comes in splits: choose train, validation or test"):
        vitlab.evaluate(model, data, split="all")
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(DataError, match="has no validation split; choose from train, test"):
        vitlab.evaluate(model, data, split="validation")


def test_figures_of_an_evaluation(model: vitlab.VisionTransformer, photos: Path) -> None:
    (photos / "red" / "003.png").write_bytes(b"no image")
    result = vitlab.evaluate(model, str(photos), workers=0)
    assert set(result) == {
        "accuracy", "top5", "nll", "ece", "images", "damaged", "split", "model", "params", "macs",
        "images_per_second", "peak_memory", "seconds", "notes", "balanced_accuracy", "macro_f1",
        "mcc", "auroc", "macro_precision", "data", "kappa", "brier", "balanced_top5",
        "balanced_nll", "calibration_error", "aurc", "coverage_at_5",
        "intervals", "classes", "confused", "temperature", "precision", "engine",
    }  # fmt: skip
    assert (result["images"], result["damaged"]) == (59, 1)
    assert result["notes"] == [
        f"{photos}/red/003.png: not a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF image"
    ]
    assert result["images_per_second"] == pytest.approx(59 / result["seconds"])
    assert result["params"] == sum(weight.numel() for weight in model.parameters())


def test_other_classes_are_refused(model: vitlab.VisionTransformer, tmp_path: Path) -> None:
    photo_folder(tmp_path / "a", {"blue": 5, "pink": 5})
    with pytest.raises(DataError, match=r"contains class .pink., which is not in the tr") as caught:
        vitlab.evaluate(model, str(tmp_path / "a"))
    advice = "the classes of the model are blue, green, red: rename the class, or leave its images"
    assert advice in str(caught.value)
    unnamed = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=4, image_size=16)
    photo_folder(tmp_path / "b", {"blue": 5, "pink": 5})
    with pytest.raises(DataError, match="b has 2 classes, but the model has 4, without names"):
        vitlab.evaluate(unnamed, str(tmp_path / "b"))


def test_answers_name_the_likeliest_classes_first(
    model: vitlab.VisionTransformer, photos: Path
) -> None:
    (photos / "bad.png").write_bytes(b"")
    answers = vitlab.classify(model, [str(photos / "bad.png"), str(photos / "red")], top=2)
    assert len(answers) == 21
    assert answers[0].as_dict() == {
        "image": str(photos / "bad.png"),
        "error": f"{photos}/bad.png: the file is empty",
    }
    for answer in answers[1:]:
        first, second = answer.classes
        assert first[1] >= second[1] > 0
        assert first[1] + second[1] <= 1
    top = answers[1].as_dict()["top"]
    assert [set(each) for each in top] == [{"class", "probability"}] * 2
    every = vitlab.classify(model, [str(photos / "red" / "000.png")], top=9)[0]
    assert sorted(name for name, _ in every.classes) == ["blue", "green", "red"]
    assert sum(chance for _, chance in every.classes) == pytest.approx(1)


def test_images_are_found_by_file_folder_and_pattern(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("b.PNG", "a.jpg", "deep/c.webp", "deep/.hidden.png"):
        photo(0).save(tmp_path / "in" / name)
    (tmp_path / "in" / "notes.txt").write_text("x")

    def found(*patterns: str) -> list[str]:
        full = [str(tmp_path / each) for each in patterns]
        source = open_images(full, "none").every()
        names = map(source.name, range(len(source)))
        return [str(Path(each).relative_to(tmp_path)) for each in names]

    assert found("in") == ["in/a.jpg", "in/b.PNG", "in/deep/c.webp"]
    assert found("in/b.PNG", "in/*.jpg") == ["in/b.PNG", "in/a.jpg"]
    assert found("in/**/*.webp") == ["in/deep/c.webp"]
    assert found("in/notes.txt") == ["in/notes.txt"]  # named: decoding will refuse it
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no images in .*empty"):
        found("empty")
    with pytest.raises(DataError, match=r"no such file: .*nowhere\.png"):
        found("in/a.jpg", "nowhere.png")
