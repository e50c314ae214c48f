# SPDX-License-Identifier: Apache-2.0
"""The programs in the package: ``python -m tensorlease`` is the command line, as the script `tensorlease` is."""

import os
import sys
from pathlib import Path


def _become(program):
    path = str(Path(__file__).parent / "bin" / program)
    os.execv(path, [program, *sys.argv[1:]])


def main():
    _become("tensorlease")


def daemon():
    _become("tensorleased")


if __name__ == "__main__":
    main()
