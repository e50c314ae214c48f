# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

__all__ = ["main"]

def main(arguments: Sequence[str] | None = None) -> int: ...
