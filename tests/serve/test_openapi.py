"""What OpenAPI says of the service is true of what schemathesis sends, allowed or not.

One of its checks is left out: that whatever the description allows is accepted. No schema can say
which bytes are a picture.
"""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from serve.fakes import FakeEngine
from steady import PATIENCE
from vitlab.serve.app import application
from vitlab.serve.limits import Limits

TOKEN = "a-token-of-more-than-16"


def check(token: str, examples: int) -> list[str]:
    """Send examples to every route; return the routes."""
    import schemathesis  # for a second
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    app = application(FakeEngine(limits=Limits(patience=PATIENCE)), token=token)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    names = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any) -> None:
            case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

        send()
        names.append(operation.label)
    return names


def test_the_description_is_true() -> None:
    """VITLAB_EXAMPLES sets how many requests a route gets."""
    names = check(TOKEN, int(os.environ.get("VITLAB_EXAMPLES", "2")))
    assert len(names) == 8
    assert "PUT /models/{name}" in names
