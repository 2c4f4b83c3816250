"""An explorer with the routes that its page asks for, and answers that are easy to foretell.

Head h of layer l looks one patch to the right for every h, the more narrowly the higher l is.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vitlab.pages.assets import EXPLORE, asset, media_type
from vitlab.serve.pages import HEADERS

NASTY = "<img src=x onerror=alert(1)>"
VIEWS = (
    "attention", "late", "rollout", "colors", "relevance", "gradcam", "similarity",
    "norms",
)  # fmt: skip
NO_ATTENTION = "a ResNet has no attention"


@dataclass(frozen=True)
class FakeModel:
    """What the page is told of a model, and the shape of what it sees."""

    name: str
    notation: str
    grid: tuple[int, int]
    depth: int
    heads: int
    prefix: tuple[str, ...] = ("class token",)
    absent: Sequence[str] = ()
    classes: tuple[str, ...] = ("pagoda", NASTY, "dahlia", "lantern", "roof", "sky")

    def described(self) -> dict[str, Any]:
        rows, columns = self.grid
        return {
            "name": self.name,
            "notation": self.notation,
            "classes": self.classes,
            "image_size": [16 * rows, 16 * columns],
            "patch": 16,
            "temperature": 1.0,
            "several": False,
            "thresholds": [],
            "views": {view: NO_ATTENTION if view in self.absent else "" for view in VIEWS},
        }

    def top(self, covered: int = 0) -> list[dict[str, Any]]:
        """The first class loses a tenth for every patch that is covered."""
        first = max(0.05, 0.75 - 0.1 * covered)
        chances = [first, 0.95 - first, 0.03, 0.01, 0.01]
        order = sorted(range(5), key=lambda number: -chances[number])
        named = [(number, self.classes[number], chances[number]) for number in order]
        return [{"class": i, "name": name, "probability": chance} for i, name, chance in named]

    def looks(self, token: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """What every head of every layer looks at from a token: largest values, and bytes."""
        rows, columns = self.grid
        before = len(self.prefix)
        row, column = divmod(max(token - before, 0), columns)
        down, across = np.mgrid[:rows, :columns]
        found = np.zeros((self.depth, self.heads, before + rows * columns))
        for layer in range(self.depth):
            for head in range(self.heads):
                there = min(columns - 1, column + head)
                far = (down - row) ** 2 + (across - there) ** 2
                found[layer, head, before:] = np.exp(-far * (layer + 1) / 8).ravel()
        found[..., :before] = 0.5
        found /= found.sum(-1, keepdims=True)
        largest = found.max(-1)
        return largest.astype("<f4"), np.round(255 * found / largest[..., None]).astype(np.uint8)


FIRST = FakeModel("first", "ViT-Ti/16", (14, 14), 12, 12)
SECOND = FakeModel("second", "ViT-S/32", (7, 7), 6, 6, ("class token", "register 1"))
ALONE = FakeModel(
    "no attention", "BiT-R50x1", (7, 7), 0, 0, (), ("attention", "late", "rollout", "relevance")
)


@dataclass
class FakeExplorer:
    """An application with its models and images; `asked` are the paths of all requests.

    Args:
        models: that the page shows
    """

    models: Sequence[FakeModel]
    images: dict[str, tuple[str, Image.Image]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def application(self) -> Starlette:
        """Return it with all its routes."""
        look = "/api/look/{model:int}/{image}"
        routes = [
            Route("/", sent("explore.html")),
            *(Route(f"/page/{name}", sent(name)) for name in EXPLORE),
            Route("/api/state", self.state),
            Route("/api/images", self.upload, methods=["POST"]),
            Route("/api/images/{image}", self.picture),
            Route(look, self.look),
            Route(f"{look}/attention/{{token:int}}", self.attention),
            Route(f"{look}/map/{{kind}}", self.map),
            Route(f"{look}/colors", self.colors),
            Route(f"{look}/without", self.without, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def open(self, data: bytes, name: str) -> dict[str, Any]:
        """Open an image; the same file twice is the same image."""
        identity = hashlib.sha256(data).hexdigest()[:16]
        photo = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        self.images[identity] = (name, photo)
        return self._described(identity)

    def _described(self, identity: str) -> dict[str, Any]:
        name, photo = self.images[identity]
        return {"id": identity, "name": name, "width": photo.width, "height": photo.height}

    def _model(self, request: Request) -> FakeModel:
        self.asked.append(str(request.url.path))
        return self.models[request.path_params["model"]]

    async def state(self, request: Request) -> JSONResponse:
        models = [each.described() for each in self.models]
        images = [self._described(each) for each in self.images]
        limits = {"body": 2**20}
        return JSONResponse({"models": models, "images": images, "limits": limits})

    async def upload(self, request: Request) -> JSONResponse:
        try:
            return JSONResponse(self.open(await request.body(), request.query_params["name"]), 201)
        except OSError:
            return JSONResponse({"error": "it is no image, or damaged"}, 422)

    async def picture(self, request: Request) -> Response:
        stream = io.BytesIO()
        self.images[request.path_params["image"]][1].save(stream, "PNG", compress_level=1)
        return Response(stream.getvalue(), media_type="image/png")

    async def look(self, request: Request) -> JSONResponse:
        """The middle square of the photo."""
        model = self._model(request)
        photo = self.images[request.path_params["image"]][1]
        side = min(photo.size)
        across, down = (1 - side / photo.width) / 2, (1 - side / photo.height) / 2
        return JSONResponse(
            {
                "top": model.top(),
                "box": [across, down, 1 - across, 1 - down],
                "grid": model.grid,
                "prefix": model.prefix,
                "layers": [str(layer + 1) for layer in range(model.depth)],
                "heads": model.heads,
                "depth": model.depth or 4,
                "tokens": len(model.prefix) + model.grid[0] * model.grid[1],
            }
        )

    async def attention(self, request: Request) -> Response:
        largest, levels = self._model(request).looks(request.path_params["token"])
        return Response(largest.tobytes() + levels.tobytes(), media_type="application/octet-stream")

    async def map(self, request: Request) -> JSONResponse:
        """Rising to the right; what is signed has its zero in the middle."""
        rows, columns = (model := self._model(request)).grid
        low = -1.0 if request.path_params["kind"] == "gradcam" else 0.0
        values = np.tile(np.linspace(low, 1, columns), (rows, 1)).tolist()
        return JSONResponse({"grid": model.grid, "values": values, "unit": "made up"})

    async def colors(self, request: Request) -> JSONResponse:
        rows, columns = (model := self._model(request)).grid
        down, across = np.mgrid[:rows, :columns]
        colors = np.stack([255 * down // rows, 255 * across // columns, 0 * down + 120], -1)
        return JSONResponse({"grid": model.grid, "colors": colors.tolist()})

    async def without(self, request: Request) -> JSONResponse:
        model, body = self._model(request), await request.json()
        top = model.top(len(body["patches"]))
        chances = {each["class"]: each["probability"] for each in top}
        return JSONResponse({"top": top, "chances": [chances[each] for each in body["classes"]]})


def sent(name: str) -> Any:
    """What answers with a file of the pages, under their policy."""

    async def send(request: Request) -> Response:
        return Response(asset(name), media_type=media_type(name), headers=HEADERS)

    return send
