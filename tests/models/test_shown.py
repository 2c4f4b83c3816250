"""A model in a notebook: one line with what differs from the defaults."""

import vitlab
from vitlab.models.config import config_of


def test_a_model_says_what_differs_from_the_defaults() -> None:
    model = vitlab.create("ViT-Ti/16", 10, 32, registers=4, pool="mean")
    assert repr(model) == (
        "ViT-Ti/16(image_size=32, classes=10, pool='mean', registers=4), 5,489,866 parameters"
    )
    assert repr(vitlab.create("BiT-R(1)x1", 1000, 224)).startswith("BiT-R(1)x1(), ")
    many = vitlab.create("dVAE(width=8)/8", mean=(0.123456789,) * 3, std=(0.987654321,) * 3)
    assert "mean=(0.123456789,), " in repr(many)
    assert config_of("Axial-ViT-B/16").chosen() == {}
    assert config_of("Axial-ViT-B/16", pool="attention").chosen() == {"pool": "attention"}
