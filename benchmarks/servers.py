"""What `benchmarks/serve.py` runs in processes of their own: the other servers, and the bare model.

`python benchmarks/servers.py litserve FOLDER PORT BATCH` serves a model, as does `fastapi`;
`bare FOLDER ROUNDS` times it without a server, and `write MODEL FOLDER` makes it.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
from measuring import interleaved

import vitlab

try:
    from litserve import LitAPI
    from starlette.requests import Request
except ImportError:  # then `run_litserve` is not called
    LitAPI = Request = object

SIZES = (1, 2, 4, 8, 16, 32)
ENOUGH = 0.97  # of the best rate: the smallest batch that reaches it counts as the best
LONGEST = 0.5  # seconds that a batch of several images may take
TOP = 5


def write(name: str, folder: Path) -> None:
    """Save a model with random weights whose answers differ from photo to photo."""
    kind, size = name.split(":")
    torch.manual_seed(0)
    model = vitlab.create(f"ViT-{kind}", classes=1000, image_size=int(size))
    with torch.no_grad():
        for weight in model.head.parameters():
            weight.mul_(30)
    vitlab.save(model, folder)


def prepared(folder: Path) -> Any:
    """Return the model as every server here computes it: fused, without gradients."""
    return vitlab.fuse(vitlab.load(folder)).eval()


def bare(folder: Path, rounds: int) -> dict[str, float]:
    """Time batches of the model alone: images per second and seconds of the best one."""
    model = prepared(folder)
    size = model.config.size_for(*model.config.size)
    images = torch.randn(max(SIZES), model.config.channels, *size)
    with torch.inference_mode():
        works = {str(n): (lambda n=n: model(images[:n]).softmax(-1)) for n in SIZES}
        first = interleaved(works, 1, "cpu")
        short = {n: w for n, w in works.items() if n == "1" or first[n][0] <= LONGEST}
        times = {n: min(each) for n, each in interleaved(short, rounds, "cpu").items()}
    rates = {int(n): int(n) / seconds for n, seconds in times.items()}
    best = min(n for n, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
    return {"batch": best, "rate": rates[best], "seconds": best / rates[best]}


def top(row: torch.Tensor) -> dict[str, Any]:
    """Return the likeliest classes as an answer holds them."""
    best = row.topk(min(TOP, len(row)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {"top": [{"class": str(n), "probability": chance} for n, chance in pairs]}


def run_fastapi(folder: Path, port: int) -> None:
    """Serve with FastAPI as its tutorial has it: a thread per request, one image per pass."""
    import uvicorn
    from fastapi import FastAPI, File

    model, app = prepared(folder), FastAPI()
    prepare = vitlab.preprocess(model)

    def predict(image: Annotated[bytes, File()]) -> dict[str, Any]:
        with torch.inference_mode():
            return top(model(prepare(image)).softmax(-1)[0])

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    app.post("/predict")(predict)
    app.get("/health")(health)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


class Predict(LitAPI):
    """LitServe's way: decoding and the model in its one worker, which gathers batches."""

    folder: Path

    def setup(self, device: str) -> None:
        """Load the model, in the worker."""
        self.model = prepared(self.folder)
        self.prepare = vitlab.preprocess(self.model)

    def decode_request(self, request: Request) -> Any:
        """Decode one image."""
        return self.prepare(request["image"].file.read())

    def batch(self, inputs: list[Any]) -> Any:
        """Join images."""
        return torch.cat(inputs)

    def predict(self, x: Any) -> Any:
        """Compute a batch."""
        with torch.inference_mode():
            return self.model(x).softmax(-1)

    def unbatch(self, output: Any) -> list[Any]:
        """Split what was computed."""
        return list(output)

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Answer for one image."""
        return top(output)


def run_litserve(folder: Path, port: int, batch: int) -> None:
    """Serve with LitServe."""
    import litserve

    api = Predict(max_batch_size=max(2, batch), batch_timeout=0.005)
    api.folder = folder
    server = litserve.LitServer(api, accelerator="cpu", timeout=False)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


def main() -> None:
    """Do what the first argument names."""
    match sys.argv[1:]:
        case "write", name, folder:
            write(name, Path(folder))
        case "bare", folder, rounds:
            print(json.dumps(bare(Path(folder), int(rounds))))
        case "fastapi", folder, port, _:
            run_fastapi(Path(folder), int(port))
        case "litserve", folder, port, batch:
            run_litserve(Path(folder), int(port), int(batch))


if __name__ == "__main__":
    main()
