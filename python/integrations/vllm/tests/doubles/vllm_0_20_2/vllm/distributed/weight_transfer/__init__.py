# SPDX-License-Identifier: Apache-2.0
"""An older interface, for which the plug-in has no engine."""

from vllm_double import Factory


class WeightTransferEngine: ...


class WeightTransferEngineFactory(Factory): ...
