"""Sequential Monte Carlo: texts that are draws of the model given its constraint."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, exp

import torch

from structout.integrations.transformers.decode import Text


class Population:
    """The texts of each prompt, weighed by how much of the model's probability their
    constraint has kept.

    A constrained draw renormalizes each token, so it favours beginnings that the model
    finds likely and whose rests it finds unlikely. The product of the kept
    probabilities is the weight that makes up for it. When the weights of a prompt's
    texts have become as uneven as if half of them were all, light texts are replaced by
    copies of heavy ones, which go on with draws of their own; at the end once more, so
    that all texts count the same.

    Source: systematic resampling as in Douc and Cappé, "Comparison of resampling
    schemes for particle filtering", arXiv:cs/0507025; for language models in Lew et
    al., "Sequential Monte Carlo steering of large language models", arXiv:2306.03081.

    Args:
        texts: of all prompts.
        size: the texts of one prompt, which stand side by side.
        seeds: int64, of each text.

    Attributes:
        log_weights: of each text.
    """

    def __init__(self, texts: Sequence[Text], size: int, seeds: Sequence[int]):
        self._texts = texts
        self._groups = [range(first, first + size) for first in range(0, len(texts), size)]
        self._rngs = [torch.Generator().manual_seed(seeds[group.start]) for group in self._groups]
        self.log_weights = [0.0] * len(texts)

    def resample(self, *, is_last: bool = False) -> list[int] | None:
        """Replace light texts.

        Args:
            is_last: also where the weights are nearly even.

        Returns:
            for each text the one that it continues; None if all go on.
        """
        ancestors = [*range(len(self._texts))]
        for group, rng in zip(self._groups, self._rngs, strict=True):
            highest = max(self.log_weights[i] for i in group)
            weights = [exp(self.log_weights[i] - highest) for i in group]
            effective_size = sum(weights) ** 2 / sum(weight**2 for weight in weights)
            if is_last or effective_size < len(group) / 2:
                ancestors[group.start : group.stop] = [
                    group.start + i for i in systematic(weights, torch.rand((), generator=rng).item())
                ]
                for i in group:
                    self.log_weights[i] = 0.0
        if all(i == ancestor for i, ancestor in enumerate(ancestors)):
            return None
        for i, ancestor in enumerate(ancestors):
            if i != ancestor:
                self._texts[i].become(self._texts[ancestor])
        return ancestors


def systematic(weights: Sequence[float], offset: float) -> list[int]:
    """Draw as many indices as there are weights, index i about ``len(weights) *
    weights[i] / sum(weights)`` times. What is drawn stays in its place.

    Args:
        weights: at least 0, and not all 0.
        offset: a random number in [0, 1).
    """
    cumulative = [*accumulate(weights, initial=0.0)]
    ends = [ceil(len(weights) * each / cumulative[-1] - offset) for each in cumulative]
    counts = [end - begin for begin, end in pairwise(ends)]
    copies = iter([i for i, count in enumerate(counts) for _ in range(count - 1)])
    return [i if count else next(copies) for i, count in enumerate(counts)]
