"""Ending a run before it has made all its steps, in the same way as at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from algorithms.runs.options import Options
from jaxrl_buffers._checks import FLOAT32, require_number


class EarlyStop:
    """Decides between chunks whether a run ends early. Time is counted from the moment this object is made.

    Args:
        options: of the run.
    """

    def __init__(self, options: Options):
        if options.max_time is not None:
            require_number("run", "max_time", options.max_time, 0)
        if options.stop_at_return is not None:
            require_number("run", "stop_at_return", options.stop_at_return, -float(FLOAT32.max))
        self._options = options
        self._begun = time.monotonic()

    def reason(self, metrics: Mapping[str, Any] | None) -> str | None:
        """Return the name of the option that ends the run, if one does.

        Args:
            metrics: of the evaluation after the last chunk, if there was one.
        """
        options = self._options
        if metrics is not None:
            if options.on_evaluation(dict(metrics)):
                return "on_evaluation"
            if options.stop_at_return is not None and np.mean(metrics["returns"]) >= options.stop_at_return:
                return "stop_at_return"
        is_late = options.max_time is not None and time.monotonic() - self._begun >= options.max_time
        return "max_time" if is_late else None
