"""What a model costs."""

from vitlab.measure.cost import Cost, cost

__all__ = ["Cost", "cost"]
