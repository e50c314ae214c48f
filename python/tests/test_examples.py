# SPDX-License-Identifier: Apache-2.0
"""The examples run, on a daemon that connect() starts for them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tensorlease

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("dataloader", ["--batches", "12", "--workers", "2"], "12 batches"),
        ("dataloader", ["--batches", "12", "--workers", "2", "--method", "fork"], "12 batches"),
        ("camera", ["--frames", "60"], "slow: "),
        ("weights", ["--workers", "3"], "bytes of weights, shared"),
        ("state_dict", ["--save", "model.safetensors"], "48 tensors saved to model.safetensors"),
    ],
)
def test_example(name, arguments, says, tmp_path):
    if name == "state_dict":
        pytest.importorskip("torch")
    result = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "TENSORLEASE_SOCKET": str(tmp_path / "socket")},
    )
    with tensorlease.connect(tmp_path / "socket") as client:
        left = client.list()
        os.kill(client.status().daemon_pid, signal.SIGTERM)
    assert result.returncode == 0, result.stderr
    assert left == []
    assert says in result.stdout and not result.stderr


def test_all_examples_are_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"dataloader", "camera", "state_dict", "weights"}
