"""While an engine is made, exporters are not heard, and everybody else is."""

import logging

import pytest

import vitlab
from vitlab.progress import say


def test_our_lines_are_heard_while_an_engine_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an engine asks of PyTorch's compiler is where the exporters speak."""
    pytest.importorskip("onnxruntime")
    import onnxruntime

    real = onnxruntime.InferenceSession
    root, exporter = logging.getLogger().level, logging.getLogger("onnxscript.made.up")

    def session(*given: object, **named: object) -> object:
        say("still measuring")
        exporter.warning("an exporter's words")
        return real(*given, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", 2, 16)
    vitlab.accelerate(model, engine="onnxruntime", precision="fp32")
    said = capsys.readouterr().err
    assert "still measuring" in said
    assert "exporter" not in said
    assert logging.getLogger().level == root
