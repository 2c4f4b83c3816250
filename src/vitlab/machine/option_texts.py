"""Help of the options of where to compute, which runs and other commands have in common."""

DEVICE = "where to compute: auto, cpu, cuda, cuda:N or mps"
WORKERS = "processes that decode images (None: chosen for the data and machine)"
