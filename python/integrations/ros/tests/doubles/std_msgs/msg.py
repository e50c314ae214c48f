# SPDX-License-Identifier: Apache-2.0
"""A double of the message that the package uses, which takes what the class that ROS generates takes."""

import array


class UInt8MultiArray:
    def __init__(self, *, data=()):
        if isinstance(data, array.array):
            assert data.typecode == "B", "uint8[] is an array of 'B'"
        else:
            assert all(isinstance(one, int) and 0 <= one < 256 for one in data), "uint8[] is of ints below 256"
            data = array.array("B", data)
        self.data = data
