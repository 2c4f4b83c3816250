"""What fine-tuning a part of the weights saves, in our model, timm's and transformers'.

`python benchmarks/tune.py --models B/16:384:1 --rounds 5 --cpu-time`
`python benchmarks/tune.py --models B/16:384:64 --precision bf16 --device cuda`

A model is SIZE/PATCH:PIXELS:BATCH. The modes are those of `vitlab finetune --tune`; timm's and
transformers' models free the parameters with the same part in theirs, and get LoRA by peft's own
`get_peft_model`. A step is forward, softmax cross-entropy, backward and fused AdamW over the free
parameters, the same for all, on the same weights and batch. Per mode and library:

- kept: what autograd keeps for the backward pass, without weights, counted by its hooks;
- states: gradients and the optimizer's moments;
- peak: the growth of a process of its own in three steps, or the GPU's peak; weights included;
- time: median of interleaved rounds, and the median over pairs with `all` of the same library.

Needs torch; the peers' LoRA needs peft. Peers that are not installed are left out.
"""

import argparse
import gc
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from typing import Any

import torch
from measuring import interleaved, machine, peer
from torch import Tensor, nn
from torch.nn import functional as F
from train import build_ours, build_timm, build_transformers, memory_from_here, peak_since

MODES = ("all", "attention", "ffn", "norms", "head", "lora")
RANK, ALPHA = 8, 16.0
# What is free in the peers' names; the classifier always is
FREE = {
    "timm": {
        "attention": r"\.attn\.|pos_embed",
        "ffn": r"\.mlp\.|pos_embed",
        "norms": r"norm",
        "head": r"^head\.",
        "lora": r"blocks\.\d+\.attn\.(qkv|proj)",
    },
    "transformers": {
        "attention": r"\.attention\.|position_embeddings",
        "ffn": r"\.mlp\.|position_embeddings",
        "norms": r"norm",
        "head": r"classifier\.",
        "lora": r".*\.attention\.[qkvo]_proj",
    },
}
HEADS = {"timm": "head", "transformers": "model.classifier"}
LIBRARIES = ("ours", *FREE)


def tuned(library: str, model: nn.Module, mode: str) -> nn.Module:
    """Return a model whose parameters are free or frozen as a mode wants it."""
    if library == "ours":
        return _ours(model, mode)
    if mode == "all":
        return model
    if mode == "lora":
        peft = peer("peft")
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=FREE[library]["lora"])
        model = peft.get_peft_model(model, config)
        model.get_submodule(f"base_model.model.{HEADS[library]}").requires_grad_()
        return model
    for name, weight in model.named_parameters():
        head = name.startswith(HEADS[library])
        weight.requires_grad_(head or bool(re.search(FREE[library][mode], name)))
    return model


def _ours(model: Any, mode: str) -> nn.Module:
    from vitlab.tuning.free import freeze, train_mode
    from vitlab.tuning.lora import inject

    if mode == "lora":
        generator = torch.Generator().manual_seed(0)
        inject(model, generator, rank=RANK, alpha=ALPHA, targets="attention")
        model.head.requires_grad_()
    else:
        freeze(model, mode)
    train_mode(model)
    return model


class Form:
    """One library's model in one mode, and its training step."""

    def __init__(self, library: str, mode: str, spec: str, args: argparse.Namespace) -> None:
        kind, pixels, batch = spec.split(":")
        size, patch = kind.split("/")
        torch.manual_seed(0)
        images = torch.randn(int(batch), 3, int(pixels), int(pixels))
        labels = torch.randint(1000, (int(batch),))
        model = build_ours(size, int(patch), int(pixels))
        build = {"ours": lambda same: same, "timm": build_timm, "transformers": build_transformers}
        self.model = tuned(library, build[library](model).train(), mode).to(args.device)
        self.images, self.labels = images.to(args.device), labels.to(args.device)
        self.bf16 = args.precision == "bf16"
        self.free = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.free, lr=1e-4, fused=True)

    def loss(self) -> Tensor:
        """Go forward."""
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.bf16):
            return F.cross_entropy(self.model(self.images), self.labels)

    def step(self) -> float:
        """Take a step."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def kept(self) -> int:
        """Return the bytes that autograd keeps for the backward pass, each storage once."""
        weights = [*self.model.parameters(), *self.model.buffers()]
        known = {weight.untyped_storage().data_ptr() for weight in weights}
        places: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                places[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = self.loss()  # which holds on to the graph while it is counted
        assert loss.requires_grad
        return sum(places.values())

    def states(self) -> int:
        """Return the bytes of gradients and moments after a step."""
        self.step()
        moments = [v for state in self.optimizer.state.values() for v in state.values()]
        tensors = [weight.grad for weight in self.free] + moments
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def peak(library: str, mode: str, spec: str, args: argparse.Namespace) -> int:
    """Return the peak bytes of a form by itself, weights included."""
    if args.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        form = Form(library, mode, spec, args)
        for _ in range(3):
            form.step()
        return torch.cuda.max_memory_allocated() - before
    words = [sys.executable, __file__, "--peak-of", library, mode, "--models", spec]
    words += ["--precision", args.precision]
    return int(json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["bytes"])


def peak_here(library: str, mode: str, spec: str, args: argparse.Namespace) -> None:
    """Print by how many bytes this process grows in three steps, libraries not counted."""
    Form(library, mode, "Ti/16:32:2", args).step()
    base = memory_from_here()
    form = Form(library, mode, spec, args)
    for _ in range(3):
        form.step()
    print(json.dumps({"bytes": peak_since(base)}))


def compare(library: str, spec: str, args: argparse.Namespace) -> None:
    """Measure the modes of one library, and print their rows."""
    forms = {mode: Form(library, mode, spec, args) for mode in args.modes}
    first = {mode: round(form.step(), 4) for mode, form in forms.items()}
    kept = {mode: form.kept() for mode, form in forms.items()}
    states = {mode: form.states() for mode, form in forms.items()}
    now = time.process_time if args.cpu_time else time.perf_counter
    works: dict[str, Callable[[], object]] = {mode: form.step for mode, form in forms.items()}
    times = interleaved(works, args.rounds, args.device, now=now) if args.rounds else {}
    del forms, works
    peaks = {} if args.no_peak else {mode: peak(library, mode, spec, args) for mode in args.modes}
    kind, pixels, batch = spec.split(":")
    for mode in args.modes:
        cells = [f"{kind} at {pixels}, batch {batch}", library, mode]
        for bytes_of in (kept, states, peaks):
            cells += _share(bytes_of, mode, lambda n: f"{n / 1e6:,.0f}")
        pairs = zip(times.get(mode, []), times.get("all", []), strict=True)
        ratios = [mine / whole for mine, whole in pairs]
        cells += [f"{statistics.median(times[mode]):.2f}"] if times else [""]
        cells += [f"{statistics.median(ratios):.2f}"] if ratios else [""]
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"{library}, {spec}: loss before the first update {first}", file=sys.stderr)


def _share(found: dict[str, int], mode: str, shown: Callable[[int], str]) -> list[str]:
    if mode not in found:
        return ["", ""]
    return [shown(found[mode]), f"{found[mode] / found['all']:.2f}"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["B/16:384:1", "S/16:224:4"])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5, help="0: memory alone")
    parser.add_argument("--no-peak", action="store_true")
    parser.add_argument(
        "--cpu-time", action="store_true", help="of the process: for a busy machine"
    )
    parser.add_argument("--peak-of", nargs=2, metavar=("LIBRARY", "MODE"))
    args = parser.parse_args()
    if args.peak_of:
        return peak_here(*args.peak_of, args.models[0], args)
    if "all" not in args.modes:
        parser.error("--modes must include all: the others are compared with it")
    libraries = [name for name in args.libraries if name == "ours" or peer(name)]
    versions = [f"{name} {version(name)}" for name in ("peft", *libraries) if name != "ours"]
    print(f"{date.today()}, {machine(args.device)}, {', '.join(versions)}, {args.precision}\n")
    head = "model | library | mode | kept MB | of all | states MB | of all | peak MB | of all"
    print(f"| {head} | s per step | of all |\n" + "| --- " * 11 + "|")
    for spec in args.models:
        for library in libraries:
            compare(library, spec, args)
    return None


if __name__ == "__main__":
    main()
