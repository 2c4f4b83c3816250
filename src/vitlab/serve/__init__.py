"""The service: models behind HTTP, with bounds on everything a request can ask for.

`vitlab serve` starts it on one machine; `vitlab.serve.deployment` gives it to Ray Serve.
"""

from vitlab.serve.limits import Limits as Limits
from vitlab.serve.ray_app import deployment as deployment
