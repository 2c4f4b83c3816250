"""What Ray's command line and configuration files call: `serve run vitlab.serve.ray_app:build`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from vitlab.serve.limits import Limits
from vitlab.serve.replicas import deployment


class Settings(BaseModel):
    """The `args` of an application in Ray's configuration, or `key=value` on its command line.

    All but `weights` have the defaults of `vitlab.serve.deployment`; `limits` has the fields of
    `vitlab serve`'s limits.
    """

    model_config = ConfigDict(extra="forbid")

    weights: str | dict[str, str]
    limits: dict[str, int | float] = {}
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    token_file: str = ""
    name: str = "vitlab"
    num_replicas: int | Literal["auto"] = 1
    autoscaling_config: dict[str, Any] | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    max_queued_requests: int | None = None
    health_check_period_s: float = 10
    graceful_shutdown_timeout_s: float = 60


def build(settings: Settings) -> Any:
    """Return the application that Ray deploys.

    Raises:
        UserError: as `vitlab.serve.deployment` does.
    """
    given = settings.model_dump(exclude_unset=True)
    return deployment(**given | {"limits": Limits.of(**settings.limits)})
