"""Looking inside a model."""

from vitlab.inspect.rollout import rollout

__all__ = ["rollout"]
