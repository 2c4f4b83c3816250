"""Cost of a model: parameters and multiply-adds counted, speed and memory measured."""

from vitlab.measure.rates import Rates, device_rates
from vitlab.measure.speed import Speed, speed
from vitlab.models.cost import Cost, cost, exaflops

__all__ = ["Cost", "Rates", "Speed", "cost", "device_rates", "exaflops", "speed"]
