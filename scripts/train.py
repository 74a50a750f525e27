"""Train an agent: one compiled program, many seeds, a folder with everything that came out of it.

    python scripts/train.py ddqn CartPole-v1 --buffer prioritized --n-step 3 --num-seeds 5 --total-steps 50_000
    python scripts/train.py --resume runs/ddqn_CartPole-v1_0

The settings shown by `train.py ALGORITHM ENVIRONMENT --help` are those tuned for that pair.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from algorithms import presets, run
from algorithms.plan import Plan
from algorithms.run_folder import RunFolder
from algorithms.settings import ALGORITHMS, SAMPLERS, Settings, options_of, require_name
