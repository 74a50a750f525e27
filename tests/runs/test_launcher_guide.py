"""The examples of `docs/guides/many_devices.md` for launchers: here they are stand-ins that start one process."""

from __future__ import annotations

import os
import subprocess

import pytest
import yaml
from support import guides

from algorithms.runs import command_line
from jaxrl_buffers.cluster import Cluster

START = '#!/bin/bash\nwhile [ "$1" != python ] && [ "$1" != bash ]; do shift; done\nexec "$@"\n'
LAST_WORD = '#!/bin/bash\nexec bash -c "${@: -1}"\n'
PROGRAMS = {"srun": START, "mpirun": START, "gcloud": LAST_WORD, "python": '#!/bin/bash\necho "$@"\n'}
VARIABLES = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "JOB_COMPLETION_INDEX": "3"}


def examples():
    """Return the commands of each launcher, without the folders of machines that are not there."""
    found, before = {}, ""
    for language, _, text in guides.blocks("many_devices"):
        if language == "yaml":
            job = yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"]["spec"]
            [container] = job["template"]["spec"]["containers"]
            assert container["command"] == ["bash", "-c"]
            found["kubernetes"] = container["args"][0]
        for name in ("srun", "mpirun", "gcloud"):
            if language == "bash" and name in text:
                found[f"{name}_{len(found)}"] = text if "run=" in text else before.rpartition("mpirun")[0] + text
                before = text
    return {name: text.replace("/shared/", "").replace("/mnt", "") for name, text in found.items()}


@pytest.mark.parametrize("name", examples())
def test_examples_begin_a_run_or_go_on_with_it(name, tmp_path):
    for program, text in PROGRAMS.items():
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    (tmp_path / "jaxrl-buffers").mkdir()
    variables = os.environ | VARIABLES | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def words():
        done = subprocess.run(
            ["bash", "-ec", examples()[name]], env=variables, cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()[1:]

    begun = command_line.parse(words())
    assert begun.out is not None
    assert Cluster.of_arguments(words()) in (Cluster(), Cluster(begun.coordinator, 4, 3))
    for folder in (tmp_path, tmp_path / "jaxrl-buffers"):  # the example of a TPU pod goes there
        (folder / begun.out).mkdir(parents=True)
        (folder / begun.out / "config.json").write_text("{}")
    resumed = words()
    assert resumed[:2] == ["--resume", str(begun.out)]
