# SPDX-License-Identifier: Apache-2.0
"""Processes of tensorlease.camera with the synthetic device, and the frames that it gives."""

import contextlib
import signal
import subprocess
import sys

import numpy as np
from limits import limit

WIDTH, HEIGHT = 64, 48


@contextlib.contextmanager
def running(name, *more, device="synthetic", status=0):
    """A camera that has begun, or has ended already. It is ended by SIGTERM at the end, if nobody has ended it before."""
    command = [sys.executable, "-m", "tensorlease.camera", name, "--device", device, *map(str, more)]
    if device == "synthetic":
        command += ["--width", str(WIDTH), "--height", str(HEIGHT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.said = process.stdout.readline()
        yield process
        if process.poll() is None:
            process.terminate()
        said, warned = process.communicate(timeout=limit(60))
        process.said += said
        process.warned = warned
        assert process.returncode in (status, -signal.SIGKILL), f"status {process.returncode}: {process.said}{warned}"
    finally:
        process.kill()
        process.communicate()


def frame(number, color="rgb"):
    """What the synthetic device gives."""
    y, x, c = np.indices((HEIGHT, WIDTH, 3))
    image = ((y + x + 85 * c + number) % 256).astype("uint8")
    return image if color == "rgb" else image[..., ::-1]
