# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import torch
from transformers import PreTrainedModel

from . import Client

__all__ = ["from_pretrained", "newest", "publish"]

_Model = TypeVar("_Model", bound=PreTrainedModel)

def from_pretrained(
    id: str | os.PathLike[str],
    *,
    name: str | None = None,
    client: Client | None = None,
    auto: Any = None,
    dtype: str | torch.dtype | None = None,
    prepare: Callable[[Any], PreTrainedModel | None] | None = None,
    key: str | None = None,
    build: Callable[[Any], PreTrainedModel] | None = None,
    evictable: bool = True,
    timeout: float | None = 600.0,
    trust: Literal["all"] | Iterable[int] = (),
    **options: Any,
) -> Any: ...
def newest(model: _Model) -> _Model: ...
def publish(
    model: PreTrainedModel,
    name: str,
    *,
    client: Client | None = None,
    build: Callable[[Any], PreTrainedModel] | None = None,
    evictable: bool = True,
) -> None: ...
