# SPDX-License-Identifier: Apache-2.0
"""Stands in for PyTorch where it is not installed. LeRobot 0.6 imports it beside its cameras, which do not use it."""


class device:
    pass


dtype = Tensor = device
