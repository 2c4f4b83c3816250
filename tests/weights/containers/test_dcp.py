"""PyTorch's distributed checkpoints: the advice that they are refused with."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open import open_source


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_advice_makes_a_file_that_loads(
    timm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(timm_folder)
    tensors = {name: source.read(name) for name in source.shapes}
    dcp.save({"model": tensors, "epoch": 3}, checkpoint_id=tmp_path / "step-3")
    with pytest.raises(WeightsError, match="contains a distributed checkpoint of Py") as caught:
        vitlab.load(tmp_path / "step-3")
    words = str(caught.value).partition("python ")[2].split()
    given = {"FOLDER": str(tmp_path / "step-3"), "FILE.pth": str(tmp_path / "file.pth")}
    monkeypatch.setattr(sys, "argv", [given.get(word, word) for word in words[1:]])
    runpy.run_module(words[1], run_name="__main__")
    read = open_source(tmp_path / "file.pth")
    assert all(torch.equal(read.read(name), tensors[name]) for name in tensors)
