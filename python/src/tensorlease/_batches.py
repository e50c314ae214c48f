# SPDX-License-Identifier: Apache-2.0
"""Batches as items of a stream, without pickle, and batches of another size made of them.

The first tensor of an item has the batch's layout, as _samples.py has that of a sample, and all small leaves. Each large
one is a tensor of its own.
"""

import json
import struct

import numpy
import torch

from . import _samples
from ._queue import _COPY_MAX

_SIZES = struct.Struct("<II")  # bytes of the layout's text, and of the sizes of varying leaves


def packed(batch, device):
    """Return a batch as the arrays of an item. device: where its tensors go, or None."""
    fixed, varying = [], []
    text = json.dumps(_samples.describe([batch], fixed, varying), separators=(",", ":"))
    fixed, varying = [one for (one,) in fixed], [one for (one,) in varying]
    large, small = [], []
    for kind, leaf in zip(_samples.layout_of(text).kinds, fixed, strict=True):
        if device is not None and kind == "t" and len(leaf):
            large.append(torch.from_numpy(leaf).to(device))
        else:
            (large if len(leaf) > _COPY_MAX else small).append(leaf)
    text, sizes = text.encode(), json.dumps([len(one) for one in varying]).encode()
    parts = [_SIZES.pack(len(text), len(sizes)), text, sizes, *varying, *small]
    return [numpy.frombuffer(b"".join(parts), "uint8"), *large]


def _large(tensor, copied):
    """Return the bytes of a leaf, which may be written to without anybody seeing it unless they are on a GPU."""
    if tensor.device != "cpu":
        return tensor.torch().clone() if copied else tensor.torch()
    return _samples.own(tensor.bytes()) if copied else tensor.copy_on_write().bytes()


def unpacked(tensors, copied):
    """Return the batch that an item with these Tensors is. copied: it does not hold them."""
    head, large = tensors[0].bytes(), iter(tensors[1:])
    on_gpu = any(tensor.device != "cpu" for tensor in tensors[1:])
    at = _SIZES.size

    def read(size):
        nonlocal at
        at += size
        return head[at - size : at]

    size, sizes = _SIZES.unpack_from(head)
    layout = _samples.layout_of(str(read(size), "utf-8"))
    varying = [bytes(read(size)) for size in json.loads(bytes(read(sizes)))]
    fixed = []
    for kind, size in zip(layout.kinds, layout.rows, strict=True):
        is_large = size > _COPY_MAX or (on_gpu and kind == "t" and size)
        fixed.append(_large(next(large), copied) if is_large else _samples.own(read(size)))
    return layout.sample(fixed, varying)


def _is_column(batch):
    """Whether it is what default_collate() makes of texts, one for each sample."""
    return bool(batch) and all(isinstance(one, (str, bytes)) for one in batch)


def _again(batch, parts):
    """Return such a sequence of other parts."""
    return batch._make(parts) if hasattr(batch, "_fields") else type(batch)(parts)


def cut(batch, start, stop, size):
    """Return the samples from start to stop of a batch of that size, as views."""
    if isinstance(batch, dict):
        return {key: cut(one, start, stop, size) for key, one in batch.items()}
    if isinstance(batch, (list, tuple)) and not _is_column(batch):
        return _again(batch, [cut(one, start, stop, size) for one in batch])
    if isinstance(batch, (torch.Tensor, numpy.ndarray)):
        if batch.shape[:1] == (size,):
            return batch[start:stop]
        what = f"a tensor of shape {tuple(batch.shape)}"
    elif isinstance(batch, (list, tuple)) and len(batch) == size:
        return batch[start:stop]
    else:
        what = f"a part of type {type(batch).__name__!r}"
    raise ValueError(f"{what} in a batch of {size} samples cannot be divided: all trainers need the same batch_size")


def joined(parts):
    """Return one batch of the samples of several."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, numpy.ndarray):
        return numpy.concatenate(parts)
    if _is_column(first):
        return type(first)(text for part in parts for text in part)
    return _again(first, [joined(part) for part in zip(*parts, strict=True)])
