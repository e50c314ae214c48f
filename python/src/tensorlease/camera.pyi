# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Literal, NamedTuple

from . import Client, Info, Item, Tensor

__all__ = ["FrameInfo", "frame_info", "is_live", "main"]

class FrameInfo(NamedTuple):
    number: int
    captured_ns: int
    fps: float
    color: Literal["rgb", "bgr"]
    pid: int

def frame_info(frame: Tensor | Info | Item) -> FrameInfo: ...
def is_live(client: Client, name: str) -> bool: ...
def main(arguments: Sequence[str] | None = None) -> int: ...
