"""`vitlab.inductive_bias`: what a classifier relies on, in one dictionary of figures."""

import logging
from typing import Literal

import numpy as np

from vitlab.data.settings import Columns
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.request import Given
from vitlab.evaluation.bias.cues import cue_figures, filtered_figures
from vitlab.evaluation.bias.patch_drop import occluded_figures
from vitlab.evaluation.bias.probed_images import probed_images, share
from vitlab.evaluation.bias.shuffled import shuffled_figures
from vitlab.evaluation.bias.translation import shifted_figures
from vitlab.evaluation.choosing import Split, choose, unlearned
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.predictions import check_classifier
from vitlab.models.model import Model
from vitlab.progress import public


@public(model=Model)
def inductive_bias(
    model: Model,
    data: Given | Source,
    *,
    images: int = 2000,
    batch: int = 250,
    seed: int = 0,
    split: Split = "auto",
    columns: Columns | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    device: str = "auto",
    workers: int | None = None,
) -> dict[str, float]:
    """Measure a classifier on images that are changed in one respect each.

    The images are a balanced sample, prepared as for evaluation, and changed as the model sees
    them. All that is random is drawn for each image from the seed, before the model is asked: two
    models of one image size see the same changes, except for the salient patches, which are the
    model's own. The figures do not depend on the batch size, apart from rounding.

    Args:
        model: with a classifier; its device and mode are the same afterwards
        data: labeled images, as `vitlab.evaluate` takes them; or an opened source, all of it
        images: how many to take at most, as many of each class as there are; all are in memory
        batch: images at once
        seed: of the sample and the changes
        split: as `vitlab.evaluate`; of an opened source there is none
        columns: which columns of a list or a table hold what; None to find them
        precision: fp32 or bf16
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose

    Returns:
        Accuracies, as shares: `clean`; `shuffled_2` (2 x 2 tiles in random order), 4 and 8, where
        they divide the image; `occluded_25` (percent of 8 x 8 patches dropped at random), 50 and
        75, `occluded_salient_25` (those that contribute most first) and `occluded_nonsalient_25`;
        `shift_1` to `shift_4` (pixels); `low_pass_25` (percent of the Nyquist frequency), 50 and
        75, and `high_pass_25`, 50 and 75. Other shares: `consistency_1` to `consistency_4` (classes
        that stay when the image is shifted); `cue_shape` and `cue_texture` (images with the phases
        of one class and the amplitudes of another that are taken for the one and the other) and
        `shape_bias`, the first of both (NaN if there are none). Counts: `images`, `damaged`, and
        `learned_from` if these are images that the model has learned from, as there are no others.

    Raises:
        DataError: no such data or split, classes that the model does not have, several labels per
            image, images of one class alone, or no usable image.
        OptionError: the model has no classifier, takes images of different sizes, or is a form of
            `vitlab.accelerate`, which gives no gradients.
    """
    check_classifier(model)
    if isinstance(data, Source):
        asked = unlearned(data, model.seen, leave_out=False)
    else:
        asked = choose(model, data, split, columns)
    for note in asked.notes:
        logging.getLogger("vitlab").warning(note)
    compute = Compute(device, precision, workers=workers)
    sampling, shuffling, dropping, shifting, pairing = np.random.default_rng(seed).spawn(5)
    with borrowed(model, compute.where):
        probed = probed_images(
            model,
            asked.source,
            images,
            batch=batch,
            generator=sampling,
            compute=compute,
        )
        clean = probed.predicted()
        return {
            "clean": share(clean == probed.labels),
            **shuffled_figures(probed, shuffling),
            **occluded_figures(probed, dropping),
            **shifted_figures(probed, clean, shifting),
            **cue_figures(probed, pairing),
            **filtered_figures(probed),
            "images": float(len(probed)),
            "damaged": float(probed.damaged),
            **({"learned_from": float(asked.learned_from)} if asked.learned_from else {}),
        }
