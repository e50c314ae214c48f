# SPDX-License-Identifier: Apache-2.0
"""The examples run and leave nothing in the daemon."""

import subprocess
import sys
from pathlib import Path

import pytest
from limits import limit

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
def test_example(name, arguments, says, client, tmp_path):
    if name == "state_dict":
        pytest.importorskip("torch")
    result = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        timeout=limit(100),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert client.list() == []
    assert says in result.stdout and not result.stderr


def test_all_examples_are_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"dataloader", "camera", "state_dict", "weights"}
