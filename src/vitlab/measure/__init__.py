"""What a model costs: parameters and multiply-adds counted, speed and memory measured."""

from vitlab.measure.cost import Cost, cost, exaflops
from vitlab.measure.speed import Speed, speed

__all__ = ["Cost", "Speed", "cost", "exaflops", "speed"]
