"""Image tokenizers: a discrete VAE is trained (Ramesh et al., 2021, section 2.1)."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.model import Model
from vitlab.models.tokenizers.tokenizer import Tokenizer
from vitlab.objectives.masks import Draws, draws_of, exponentials
from vitlab.objectives.pretext_task import LossFigures, PretextTask, Sum, as_pictures
from vitlab.recipes.pretext import Pretext


def gumbel_softmax(logits: Tensor, temperature: float, draws: Draws) -> Tensor:
    """Draw a relaxed one-hot vector at each place (Jang et al., 2016; Maddison et al., 2016).

    As the temperature falls to 0 it becomes a code drawn by its probability, softmax(logits).

    Args:
        logits: float32 (B, codes, rows, columns)
        temperature: above 0
        draws: of the Gumbel noise, -log(-log u) with u uniform in (0, 1)

    Returns:
        Shares that add up to 1 over the codes, (B, codes, rows, columns)
    """
    exponential = exponentials(draws, *logits.shape).to(logits)
    return ((logits - exponential.log()) / temperature).softmax(1)


def uniform_divergence(logits: Tensor) -> Tensor:
    """Return the KL divergence of the codes' distribution at each place from a uniform one.

    Args:
        logits: float32 (B, codes, rows, columns)

    Returns:
        Nats, from 0 to log(codes): (B, rows, columns)
    """
    logs = logits.log_softmax(1)
    return (logs.exp() * logs).sum(1) + math.log(logits.shape[1])


GROWING = 0.1  # share of the run in which the weight of the divergence grows
RECENT = 100  # steps that the frequencies of the codes remember
UNSEEN = 1e-3  # share of uniform frequencies among them, so that no code has none


class Tokenize(PretextTask):
    """Reconstruct images from codes that are drawn by a Gumbel-softmax.

    The loss is the squared error, a mean over all values of the images, plus `kl_weight`
    times the divergence of the codes from uniform ones. The divergence is added up over the places
    of an image and divided by the number of its values, as the released results of DALL-E imply
    (the paper does not say it), so that its weight of 6.6 means the same here.

    In training the decoder sees the sample; in evaluation it sees the likeliest code at each place,
    which is what a tokenizer gives to others, and nothing is drawn.

    `error` is the mean squared error of pixels in [0, 1]. `entropy` is the mean of -log f(code)
    over the likeliest codes, in nats, with the frequencies f of codes in about the last hundred
    training steps: its exponent is the perplexity of the codes, over many images rather than one
    batch, and it can be measured on held-out images too.
    """

    figures: ClassVar[tuple[str, ...]] = ("error", "entropy")
    frequencies: Tensor
    idle: Tensor
    steps: Tensor

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(options, config, guide)
        assert isinstance(config, TokenizerConfig)
        self.codes = config.codes
        self.values = config.channels * config.stride**2  # of the image, per code
        self.register_buffer("frequencies", torch.empty(self.codes, dtype=torch.float64))
        self.register_buffer("idle", torch.empty(self.codes, dtype=torch.int64))
        self.register_buffer("steps", torch.empty((), dtype=torch.int64))
        self.counts: Tensor | None = None  # of the likeliest codes, in the passes of this step
        self.begin(0, 1, 1.0)

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse what is not a tokenizer with a decoder for this loss.

        Raises:
            OptionError: the message says what would work.
        """
        if not isinstance(config, TokenizerConfig):
            raise OptionError(
                f"--task tokenizer trains a tokenizer, not {config.name}: use --model dVAE/8"
            )
        if not config.decoder:
            raise OptionError("--task tokenizer needs a tokenizer with its decoder: add --decoder")
        if config.laplace:
            raise OptionError(
                f"{config.name} has a decoder that gives scales, and squared errors have none: "
                "set laplace=False"
            )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start with equal frequencies."""
        self.frequencies.fill_(1 / self.codes)
        self.idle.zero_()
        self.steps.zero_()

    def begin(self, step: int, total: int, epoch: float) -> None:
        """Set temperature and weight of the divergence, which depend on the step alone."""
        first, last = self.options.temperature
        done = step / max(1, total - 1)
        self.temperature = last + (first - last) * (1 + math.cos(math.pi * done)) / 2
        self.weight = self.options.kl_weight * min(1.0, step / max(1.0, GROWING * total))
        self.epoch = max(1, math.ceil(epoch))

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the mean loss of a batch, and the sums over its images of error and entropy.

        Args:
            model: a `Tokenizer`; in evaluation mode nothing is drawn and nothing is counted
            batch: normalized images (B, channels, H, W)
            generator: of the Gumbel noise
        """
        assert isinstance(model, Tokenizer)
        assert isinstance(batch.images, Tensor)
        images = batch.images
        logits = model.logits(images).float()
        codes = logits.detach().argmax(1)
        if model.training:
            # on a GPU the noise is too much to bring there, and no bits are promised
            draws = generator if logits.is_cuda else draws_of(batch, generator)
            chosen = gumbel_softmax(logits, self.temperature, draws)
            self._count(codes)
        else:
            chosen = codes
        outputs = model.outputs(chosen).float()
        divergence = uniform_divergence(logits).mean() / self.values
        loss = F.mse_loss(outputs, images.float()) + self.weight * divergence
        return loss, self._figures(model, outputs.detach(), images.float(), codes)

    def stepped(self, model: Model, add: Sum) -> None:
        """Move the frequencies, and note how long each code has not been used."""
        if self.counts is None:
            return
        add(self.counts)
        self.steps += 1
        share = self.counts.double() / self.counts.sum()
        self.frequencies += (share - self.frequencies) / self.steps.clamp(max=RECENT)
        self.idle.add_(1).masked_fill_(self.counts > 0, 0)

    def drop(self) -> None:
        """Forget the codes of a step that is not taken."""
        self.counts = None

    @property
    def dead(self) -> int:
        """Number of codes that no place had as its likeliest in the last epoch."""
        return int((self.idle >= self.epoch).sum())

    def warnings(self, means: dict[str, float]) -> list[str]:
        """Tell of codes that are not used."""
        if not (dead := self.dead):
            return []
        return [
            f"{dead:,} of {self.codes:,} codes were never used in the last epoch: use fewer codes "
            "(--codes), or give the KL divergence more weight (--kl-weight)"
        ]

    def pictures(
        self, model: Model, images: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return images and what is made of their codes: uint8 (B, H, W, 3) each."""
        assert isinstance(model, Tokenizer)
        with torch.no_grad():
            columns = {"image": images, "from its codes": model.decode(model.codes(images))}
        return {name: as_pictures(model.pixels(each)) for name, each in columns.items()}

    def _count(self, codes: Tensor) -> None:
        """Add to the codes of this step."""
        ones = torch.ones_like(codes.flatten())
        found = torch.zeros(self.codes, dtype=torch.int64, device=codes.device)
        found.scatter_add_(0, codes.flatten(), ones)
        self.counts = found if self.counts is None else self.counts + found

    def _figures(
        self, model: Tokenizer, outputs: Tensor, images: Tensor, codes: Tensor
    ) -> dict[str, Tensor]:
        """Return the sums over the images of `figures`."""
        made = model.pixels(model.as_images(outputs)).clamp(0, 1)
        error = (made - model.pixels(images)).square().flatten(1).mean(1)
        likely = (1 - UNSEEN) * self.frequencies + UNSEEN / self.codes
        entropy = -F.embedding(codes, likely.log()[:, None])[..., 0].flatten(1).mean(1)
        return {"error": error.sum(), "entropy": entropy.sum()}
