# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from torch import nn
from torch.utils import data
from torch.utils.data import Dataset

from . import Client

__all__ = ["CachedDataset", "DataLoader", "allocator", "load_model", "meta_weights"]

_Model = TypeVar("_Model", bound=nn.Module)

class _MapStyle(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...

def allocator() -> Any: ...
def meta_weights() -> AbstractContextManager[None]: ...
def load_model(
    client: Client, prefix: str, model: _Model, *, strict: bool = True, timeout: float | None = None
) -> _Model: ...

class CachedDataset(Dataset[Any]):
    dataset: _MapStyle
    client: Client | None
    prefix: str
    evictable: bool
    ttl: float | None
    def __init__(
        self,
        dataset: _MapStyle,
        client: Client | None = None,
        prefix: str = "dataset",
        *,
        evictable: bool = True,
        ttl: float | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def flush(self) -> None: ...
    def clear(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def __getitem__(self, index: int) -> Any: ...
    def __getitems__(self, indexes: Iterable[int]) -> list[Any]: ...

class DataLoader(data.DataLoader[Any]):
    def __init__(self, dataset: Dataset[Any], *args: Any, client: Client | None = None, **kwargs: Any) -> None: ...
