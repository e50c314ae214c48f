# SPDX-License-Identifier: Apache-2.0
from vllm_double import BaseModelLoader, get_model_loader, register_model_loader  # noqa: F401
