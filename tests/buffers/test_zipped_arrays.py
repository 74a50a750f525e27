"""Files of NumPy's arrays are read part by part, and closed."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from jaxrl_buffers import _zipped_arrays as zipped


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists the open files of a process")
def test_files_are_closed_even_if_they_cannot_be_read(tmp_path):
    """While the arrays still exist, and after an error."""
    np.savez(tmp_path / "good.npz", obs=np.zeros((3, 2)), reward=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        archive.writestr("obs.npy", "this is no array")

    def files():
        return {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}

    with zipped.opened(tmp_path / "good.npz") as arrays:
        assert arrays["obs"][0:2].shape == (2, 2)
        assert str(tmp_path / "good.npz") in files()
    with pytest.raises(ValueError, match="is no array of NumPy") as raised, zipped.opened(tmp_path / "bad.npz"):
        pass
    assert not {str(tmp_path / name) for name in ("good.npz", "bad.npz")} & files()
    del arrays, raised
