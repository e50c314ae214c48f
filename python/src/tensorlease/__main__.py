# SPDX-License-Identifier: Apache-2.0
"""``python -m tensorlease`` is the command line. The programs are in the package or, with distributions, on $PATH."""

import os
import sys
from pathlib import Path


def _become(program):
    path = str(Path(__file__).parent / "bin" / program)
    os.execvp(path if os.path.exists(path) else program, [program, *sys.argv[1:]])


def main():
    _become("tensorlease")


def daemon():
    _become("tensorleased")


if __name__ == "__main__":
    main()
