"""Files that are not weights: each told what it is and what to do, in one line."""

import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from made_files import zipped
from vitlab.errors import WeightsError
from vitlab.weights.containers.open import open_source


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2).half()
        self.register_buffer("input_resolution", torch.tensor(224))

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_archive_and_the_advice_for_it(tmp_path: Path) -> None:
    file, trap = tmp_path / "m.pt", tmp_path / "sprung"
    torch.jit.save(torch.jit.trace(Scripted(), torch.zeros(1)), file)
    with pytest.raises(WeightsError, match="is a TorchScript archive: give the safe") as caught:
        open_source(file)
    assert len(str(caught.value).removeprefix(str(file))) < 200
    assert "save torch.jit.load(FILE).state_dict() with torch.save" in str(caught.value)
    torch.save(torch.jit.load(file).state_dict(), tmp_path / "s.pth")
    source = open_source(tmp_path / "s.pth")
    assert set(source.shapes) == {"layer.weight", "layer.bias", "input_resolution"}
    hostile = b"\x80\x02cposix\nsystem\nX" + len(f"touch {trap}").to_bytes(4, "little")
    hostile += f"touch {trap}".encode() + b"\x85R."
    file.write_bytes(zipped(("m/data.pkl", hostile), ("m/constants.pkl", hostile)))
    with pytest.raises(WeightsError, match="is a TorchScript archive"):
        open_source(file)
    assert not trap.exists()


def test_no_line_advises_to_unpickle(tmp_path: Path) -> None:
    """Whatever PyTorch's own reader would advise."""
    (tmp_path / "c.pth").write_bytes(pickle.dumps({"x": io.BytesIO}, protocol=2))
    with pytest.raises(WeightsError) as caught:
        open_source(tmp_path / "c.pth")
    for word in ("weights_only", "allow_pickle", "trust", "add_safe_globals", "\n"):
        assert word not in str(caught.value)
