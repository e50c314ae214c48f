# SPDX-License-Identifier: Apache-2.0
import contextlib

from vllm_double import calls


@contextlib.contextmanager
def disable_mtp_completeness_check():
    calls.append("unchecked")
    yield
    calls.append("checked")
