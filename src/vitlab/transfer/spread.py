"""Student's t by the name that the studies know; it goes once they run on `experiments/`."""

from vitlab.experiments.statistics import LEVEL as LEVEL
from vitlab.experiments.statistics import t_quantile as t_quantile
