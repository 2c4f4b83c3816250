"""Options of data and augmentation: bounds, and what has no effect is refused."""

from dataclasses import fields

import pytest

from vitlab.data.settings import Augment, Data
from vitlab.errors import OptionError
from vitlab.options import options_of


@pytest.mark.parametrize("kind", [Data, Augment])
def test_every_option_has_its_help(kind: type[Data | Augment]) -> None:
    assert list(options_of(kind)) == [each.name for each in fields(kind)]
    assert all(about.help for about in options_of(kind).values())


REFUSED = [
    ({"area": 0.0}, "area must be above 0 and at most 1, not 0.0"),
    ({"area": 1.5}, "area must be above 0 and at most 1, not 1.5"),
    ({"area": 0.5, "aspect": 0.9}, "aspect must be at least 1, not 0.9"),
    ({"aspect": 2.0}, "aspect=2.0 applies only with area below 1"),
    ({"rotate": -1.0}, "rotate must be at least 0, not -1.0"),
    ({"shift": -0.1}, "shift must be at least 0, not -0.1"),
    ({"zoom": -0.1}, "zoom must be at least 0, not -0.1"),
    ({"shear": 90.0}, "shear must be at least 0 and below 90, not 90.0"),
    ({"rand_ops": 16}, "rand_ops must be at least 0 and at most 15, not 16"),
    ({"rand_ops": 2, "rand_limit": -1}, "rand_limit must be at least 0, not -1"),
    ({"rand_magnitude": 5.0}, "rand_magnitude=5.0 applies only with rand_ops"),
    ({"rand_increasing": False}, "rand_increasing=False applies only with rand_ops"),
    ({"rand_ops": 1, "three_augment": True},
     "rand_ops and three_augment exclude each other: set one of them"),
    ({"hue_jitter": 0.51}, "hue_jitter must be at least 0 and at most 0.5, not 0.51"),
    ({"mix_switch": 0.1}, "mix_switch=0.1 applies only with both mixup and cutmix"),
    ({"mixup": 1, "mix_switch": 0.1}, "mix_switch=0.1 applies only with both mixup and cutmix"),
    ({"repeats": 0}, "repeats must be at least 1, not 0"),
    ({"augment_interpolation": "bicubic", "flip": True},
     "augment_interpolation=bicubic applies only with rotate, shift, zoom, shear or rand_ops"),
    ({"augment_interpolation": "cubic", "rotate": 1},
     "augment_interpolation must be one of bilinear, bicubic, not cubic"),
]  # fmt: skip


def test_limits() -> None:
    for choices, message in REFUSED:
        with pytest.raises(OptionError) as caught:
            Augment(**choices)
        assert str(caught.value) == message
    for fraction in (0.0, 1.0):
        with pytest.raises(OptionError, match="test_fraction must be above 0 and below 1"):
            Data(test_fraction=fraction)
    Augment(area=1e-3, aspect=1.0, rand_ops=15, rand_magnitude=0.0, erase=1.0, hue_jitter=0.5)
    Augment(mixup=0.1, cutmix=0.1, mix_switch=0.0, shear=89.9, three_augment=True)
    for name in ("rotate", "shift", "zoom", "shear"):
        Augment(augment_interpolation="bicubic", **{name: 0.5})
