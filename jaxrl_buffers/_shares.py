"""Fixed shares of a batch, in whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

TOLERANCE = 1e-9  # of a product such as 100 * 0.07, which is a little above 7


def split(batch_size: int, ratios: Sequence[float]) -> list[int]:
    """Return how many of `batch_size` each ratio amounts to, rounded up as long as there are any left, and the rest.

    Example:
        >>> split(10, (0.25, 0.5))
        [3, 5, 2]
    """
    ends = [0, *(min(math.ceil(batch_size * end - TOLERANCE), batch_size) for end in accumulate(ratios)), batch_size]
    return [end - begin for begin, end in pairwise(ends)]
