# SPDX-License-Identifier: Apache-2.0
from vllm_double import finalize_layerwise_reload, initialize_layerwise_reload  # noqa: F401
