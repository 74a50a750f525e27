"""Training gives the numbers that are on record."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.recorded_runs import RECORD, RUNS, outcome


@pytest.mark.parametrize("name", RUNS)
def test_the_outcome_is_the_recorded_one(name):
    recorded, found = json.loads(RECORD.read_text())[name], outcome(name)
    assert found.keys() == recorded.keys()
    for key, values in recorded.items():
        # Another processor may round otherwise, and the difference grows from update to update.
        np.testing.assert_allclose(
            np.array(found[key], float), np.array(values, float), rtol=2e-3, atol=1e-5, err_msg=key
        )
