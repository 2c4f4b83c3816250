"""What `--help` reads of stems and position schemes without importing them."""

from typing import ClassVar

import pytest

from vitlab.models import registry
from vitlab.models.registry import kinds, register, used_options


@pytest.mark.parametrize("field", ["stem", "positions"])
def test_the_sources_say_what_the_classes_say(field: str) -> None:
    assert used_options(field) == {name: kind.uses for name, kind in kinds(field).items()}
    assert list(used_options(field)) == sorted(used_options(field))
    assert registry._declared(registry.FOLDERS[field]) == used_options(field)


def test_what_is_registered_elsewhere_is_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Toy:
        name: ClassVar[str] = "toy"
        uses: ClassVar[tuple[str, ...]] = ("stem_norm",)

        @staticmethod
        def check(config: object) -> None:
            pass

    monkeypatch.setitem(registry.KINDS, "stem", dict(registry.KINDS["stem"]))
    register("stem", Toy)
    assert used_options("stem")["toy"] == ("stem_norm",)
