"""The ViT paper's Figure 7 of a model trained here: its filters, positions and attention distance.

Source: Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, section 4.5 and appendix D.7.
"""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from vitlab import inspect
from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import center, load_image
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source
from vitlab.errors import DivergedError, ImageError, OptionError
from vitlab.files import staged_file
from vitlab.inspect.heads import distances
from vitlab.inspect.plots.canvas import Floats
from vitlab.models.names import names_resnet
from vitlab.models.vit import VisionTransformer
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.runs.naming import folder_name, newest
from vitlab.studies.figure_panels import Panels, draw
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.transfer.trials import Trial, begin, campaign_place
from vitlab.units import percent

IMAGES = 1024  # test images behind the attention distance, at most
BATCH = 64
FILTERS = 28  # as in the paper
SHOWN = ("row", "column", "others", "contrast")
NEAREST = 2  # patches: places closer than this are alike in every direction


def study(
    recipe: Recipe,
    out: str | Path | None = None,
    host: Host | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Train a Vision Transformer and draw the three panels of Figure 7; a finished run is kept.

    The attention distance is a mean over up to 1,024 test images drawn with the recipe's seed.

    Args:
        recipe: a Vision Transformer with positions that are added to its tokens
        out: folder of the run and the figure; None for `runs/study-figure-7-DATA`, the newest of
            that name if it is of the same study, else a new one
        host: where to train
        command: what the user typed

    Returns:
        The JSON of `vitlab study figure-7`: `accuracy`, `distance` (the mean of the heads of each
        layer, pixels), `heads` (that of each head), `uniform` (that of uniform attention),
        `positions` (see `row_column_contrast`), and the files `light`, `dark`, `report`.

    Raises:
        DivergedError: the run diverged.
        OptionError: a model without attention, or without such positions.
        UserError: as `vitlab.train`.
    """
    _check(recipe)
    settings, name = {"study": "figure-7"}, folder_name("study-figure-7", recipe.data.data)
    last = newest(name)
    same = last is not None and CampaignFolder(last).holds("study", settings, recipe)
    folder = CampaignFolder(campaign_place(out, name, resume=same, host=host))
    campaign = begin("study", folder, settings, recipe, resume=True, host=host, command=command)
    (outcome,) = campaign.outcomes([Trial("model", recipe, recipe.model.model)])
    if outcome.run is None:
        raise DivergedError(outcome.diverged)
    if not campaign.first:
        return {}
    model = outcome.run.model
    assert isinstance(model, VisionTransformer)  # as `_check` has seen to
    splits = open_data(recipe.data.data, recipe.data.test_fraction, columns=recipe.data)
    panels = measured(model, splits.test, recipe)
    result = {
        "study": "figure-7",
        "data": recipe.data.data,
        "model": model.config.name,
        "accuracy": outcome.run.metrics["accuracy"],
        "distance": panels.distance.mean(1).round(3).tolist(),
        "heads": panels.distance.round(3).tolist(),
        "uniform": round(panels.uniform, 3),
        "positions": row_column_contrast(panels.positions),
        "run": str(outcome.folder.path),
    }
    folder.finish(result)
    return result | _written(folder, panels, result, command)


def _check(recipe: Recipe) -> None:
    """Refuse a model that has no such figure, before it is trained.

    Raises:
        OptionError: a ResNet, or positions that are not added to the tokens.
    """
    if names_resnet(recipe.model.model):
        raise OptionError(f"{recipe.model.model} has no attention: choose a Vision Transformer")
    positions = recipe.model.chosen().get("positions", "1d")
    if not {"1d", "2d"} & set(positions.split("+")):
        raise OptionError(
            f"positions={positions} are not added to the tokens, and have no similarity: choose "
            "1d or 2d"
        )


def measured(model: VisionTransformer, test: Source, recipe: Recipe) -> Panels:
    """Look inside a model.

    Args:
        model: what was trained
        test: images, of which up to 1,024 are drawn
        recipe: names the data, and has the seed of the draw

    Raises:
        OptionError: a model without positions that are added to its tokens.
    """
    kernel = next(weight for weight in model.parameters() if weight.ndim == 4)
    count = min(FILTERS, len(kernel), kernel[0].numel())
    generator = torch.Generator().manual_seed(recipe.seed)
    chosen = torch.randperm(len(test), generator=generator)[:IMAGES].tolist()
    return Panels(
        f"{model.config.name} on {Path(recipe.data.data).name}",
        inspect.embedding_filters(model, count).numpy(),
        inspect.position_similarity(model).numpy(),
        inspect.attention_distance(model, _batches(model, test, chosen)).float().numpy(),
        float(distances(model.config.grid).mean()) * model.config.patch,
    )


def _batches(model: VisionTransformer, test: Source, chosen: list[int]) -> Iterator[Tensor]:
    """Yield normalized images, (B, channels, H, W); damaged ones are left out."""
    config = model.config
    for start in range(0, len(chosen), BATCH):
        pixels = []
        for number in chosen[start : start + BATCH]:
            try:
                pixels.append(load_image(test, number, config, center(config)))
            except ImageError:
                continue
        if pixels:
            yield normalize(torch.from_numpy(np.stack(pixels)), config.mean, config.std)


def row_column_contrast(similarity: Floats) -> dict[str, float]:
    """Compute how much more alike places of one row or column are than others as far apart.

    Places at least two patches apart are compared with those in other rows and columns whose
    distance differs by at most half a patch, so that positions that only know distances get 0.

    Args:
        similarity: of `position_similarity`, (rows, columns, rows, columns)

    Returns:
        The mean cosine in one row (`row`), in one column (`column`), of the others (`others`), and
        the mean of the first two less the third (`contrast`).
    """
    rows, columns = similarity.shape[:2]
    down = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows)))[:, None, :, None]
    right = np.abs(np.subtract.outer(np.arange(columns), np.arange(columns)))[None, :, None, :]
    down, right = np.broadcast_arrays(down, right)
    apart = np.hypot(down, right)
    means = []
    for step in range(NEAREST, max(rows, columns)):
        near = np.abs(apart - step) <= 0.5
        groups = [(down == 0) & (right == step), (right == 0) & (down == step)]
        groups.append(near & (down > 0) & (right > 0))
        if all(group.any() for group in groups):
            means.append([float(similarity[group].mean()) for group in groups])
    row, column, others = np.mean(means, axis=0) if means else (0.0, 0.0, 0.0)
    found = {"row": row, "column": column, "others": others}
    found["contrast"] = (row + column) / 2 - others
    return {name: round(float(value), 4) for name, value in found.items()}


def _written(
    folder: CampaignFolder, panels: Panels, result: dict[str, Any], command: str
) -> dict[str, str]:
    """Write the figure, on light and on dark ground, and the page; return where they are."""
    places, data = {}, {}
    for shade in ("light", "dark"):
        buffer = io.BytesIO()
        draw(panels, dark=shade == "dark").savefig(buffer, format="png")
        file = folder.path / f"figure-7-{shade}.png"
        with staged_file(file) as draft:
            draft.write_bytes(buffer.getvalue())
        places[shade] = str(file)
        data[shade] = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    words = (
        "Embedding filters, the similarity of the position embeddings, and the mean attention "
        "distance of each head against its layer"
    )
    picture = Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}">'
        '<img src="{}" alt="{}" style="max-width:100%"></picture>'
    ).format(data["dark"], data["light"], words)
    rows = Table("Figures", HEAD, table(result))
    lead = "Where each layer looks, and what it knows of places (ViT paper, Figure 7)."
    page = TablePage(panels.title, lead, [rows], [picture], command=command)
    write_tables(folder.report, page)
    return places | {"report": str(folder.report)}


HEAD = ("figure", "value")


def table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the result as text, in the columns of `HEAD`."""
    rows = [("test accuracy", percent(result["accuracy"]))]
    for layer, (mean, heads) in enumerate(zip(result["distance"], result["heads"], strict=True), 1):
        spread = f"heads {min(heads):.1f} to {max(heads):.1f}"
        rows.append((f"distance, layer {layer}", f"{mean:.1f} pixels ({spread})"))
    rows.append(("distance, uniform attention", f"{result['uniform']:.1f} pixels"))
    places = result["positions"]
    rows += [(f"cosine of positions, {name}", f"{places[name]:.3f}") for name in SHOWN]
    return rows + [(name, result[name]) for name in ("light", "dark", "report") if name in result]
