# SPDX-License-Identifier: Apache-2.0
"""Copies bytes into drafts and out of tensors of any element type, without conversions."""

import ctypes
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "python" / "tests"))

import dlpack_abi


class Memory:
    """The memory of a Tensor or a Draft, as its DLPack capsule describes it. Valid as long as this object lives."""

    def __init__(self, array):
        self.capsule = array.__dlpack__(max_version=(1, 0))
        described = dlpack_abi.versioned_of(self.capsule).tensor
        self.address = (described.data or 0) + described.byte_offset
        self.nbytes = array.nbytes

    def read(self):
        return ctypes.string_at(self.address, self.nbytes) if self.nbytes else b""

    def fill(self, payload):
        assert len(payload) == self.nbytes
        ctypes.memmove(self.address, payload, self.nbytes)


def plain(tensor):
    return Memory(tensor).read()


def publish(client, name, shape, dtype, payload):
    with client.create(name, shape, dtype) as draft:
        Memory(draft).fill(payload)
