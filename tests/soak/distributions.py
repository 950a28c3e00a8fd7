"""Chi-square and tail tests of draws from fixed distributions, over all seeds of a run.

False alarms: the test makes one comparison for each grouping of each setting, and one
for the tail. Each is a finding below ``FALSE_ALARMS / number of comparisons``, so a run
of a correct sampler has a finding with a probability of at most ``FALSE_ALARMS``, one
in a million. The comparisons are made once, at the end, whatever the length.

A seed gives every setting the same share of new pairs of seed and position; a run over
other seeds is an independent sample.
"""

from __future__ import annotations

import numpy as np
import torch

from soak.hunt import Hunter, Tally
from support import sampling_statistics as statistics
from support.sampling_statistics import SETTINGS, Setting

FALSE_ALARMS = 1e-6
TAIL = statistics.long_tail(tail=262_144, gap=20.0)
_TAIL_DRAWS = 64
_GROUPINGS = 4


class Distributions(Hunter):
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._counts = {name: np.zeros(len(setting.logits), dtype=np.int64) for name, setting in SETTINGS.items()}
        self._tail_hits = self._tail_draws = 0

    def hunt(self, seed: int, tally: Tally) -> None:
        for name, setting in SETTINGS.items():
            ids = draw(setting, seed, draws_per_seed(setting))
            self._counts[name] += np.bincount(ids, minlength=len(setting.logits))
            tally.executions["draws of fixed distributions"] += len(ids)
        self._tail_hits += int((draw(TAIL, seed, _TAIL_DRAWS) > 0).sum())
        self._tail_draws += _TAIL_DRAWS
        tally.executions["noise values of the tail"] += _TAIL_DRAWS * len(TAIL.logits)

    def finish(self, tally: Tally) -> None:
        limit = FALSE_ALARMS / (len(SETTINGS) * _GROUPINGS + 1)
        p_values = {
            f"{name}, {grouping}": p_value
            for name, setting in SETTINGS.items()
            for grouping, p_value in statistics.p_values(self._counts[name], setting.probabilities()).items()
        }
        tally.measures["comparisons"] = len(p_values) + 1
        tally.measures["smallest p-value"] = min(p_values.values())
        tally.measures["p-value of a finding"] = limit
        tally.findings += [f"{name}: p = {p_value}" for name, p_value in p_values.items() if p_value < limit]
        expected = self._tail_draws * float(TAIL.probabilities()[1:].sum())
        least, most = statistics.poisson_interval(expected, limit)
        tally.measures["draws in the tail"] = self._tail_hits
        tally.measures["draws expected in the tail"] = round(expected, 3)
        if not least <= self._tail_hits <= most:
            tally.findings.append(f"{self._tail_hits} draws in the tail, {expected:.1f} expected")


def draws_per_seed(setting: Setting) -> int:
    """Return fewer draws for longer rows, so that each setting takes a similar time."""
    return max(1 << 12, min(1 << 17, (1 << 25) // len(setting.logits)))


def draw(setting: Setting, seed: int, draws: int) -> np.ndarray:
    """Return ``draws`` ids, int64. Pairs of seed and position are small and
    consecutive, as in engines, and no pair occurs twice in a run."""
    index = torch.arange(seed * draws, (seed + 1) * draws)
    return setting.draw(torch.ops.structout.masked_sample, index // 1000, index % 1000).numpy()


make = Distributions
