# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import nn
from torch.utils import data
from torch.utils.data import Dataset
from typing_extensions import Self

from . import Client

__all__ = ["CachedDataset", "DataLoader", "SharedLoader", "allocator", "load_model", "meta_weights"]

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
        prefix: str = ...,
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

class SharedLoader:
    dataset: Any
    batch_size: int | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    drop_last: bool
    name: str
    pin_memory: bool
    timeout: float
    epoch: int | None
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        *,
        name: str,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        depth: int = 8,
        join: Literal["now", "next"] = "now",
        trainers: int = 1,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        timeout: float = 0,
        client: Client | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        in_order: bool = True,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, int]: ...
    def load_state_dict(self, state: dict[str, int]) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
