"""The commands, one file each: options, what runs, how the result is printed.

A file holds a `SUMMARY`, `run(options) -> dict` (the JSON object) and `show(result)` (the table).
Where the defaults depend on what is given, `build(given)` makes the options, else their class does.
`begin(options)` comes before PyTorch is imported: it refuses early what checks of single options
cannot, and may say what begins. A command that works without PyTorch has `LIGHT = True`.
"""

from vitlab.options import Only, options_of
from vitlab.places import is_folder
from vitlab.recipes.recipe import Host

# help of the options that several commands have
DEVICE = options_of(Host)["device"].help
WORKERS = options_of(Host)["workers"].help
PRECISION = "fp32, or bf16 autocast"
ENGINE = (
    "what computes: plain PyTorch, its packed form, compiled, onnxruntime, openvino; or auto: for "
    "much work the fastest that agrees with plain, found by measuring"
)
PRECISION_AUTO = (
    "fp32; bf16; or auto: bf16 for many images, where the device multiplies it faster and "
    "probabilities agree with those in fp32"
)
WEIGHTS = "a run folder, a saved model, a weights file, or user/name on the Hugging Face Hub"
FLIPS = "average the probabilities over each image and its mirror image"
CROPS = (
    "average the probabilities over 5 crops (corners and center), or over 10 (these and their "
    "mirror images)"
)
OUT = "a new .csv, .jsonl or .parquet file for a row per image"
PARTED = Only("with a folder as out", lambda options: bool(options.out and is_folder(options.out)))
FILED = Only("with a file as out", lambda options: bool(options.out and not is_folder(options.out)))
PART_HELP = "images of each file in the folder, rounded up to whole batches"
SHARD = (
    "every n-th file of the folder, for one of n processes that know nothing of each other: 0/8, "
    "1/8, … 7/8 (empty: all files)"
)
ON = (
    "ray: on a Ray cluster, that of RAY_ADDRESS or one on this machine, whose actors have a GPU or "
    "up to 4 cores each"
)
TIMEOUT = "seconds that a process of torchrun waits for the slowest, before giving up"
REPLACE = "replace the file that --out names"
