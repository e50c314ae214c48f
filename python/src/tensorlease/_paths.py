# SPDX-License-Identifier: Apache-2.0
"""The files that load() reads, among which an index of a model may name several, and the bar that it shows."""

import contextlib
import errno
import json
import os

from ._errors import InvalidError

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_INDEX = ".safetensors.index.json"


def check_no_pickle(path):
    """Raise an InvalidError if the suffix is that of a file of torch.save(), whose reading may run code."""
    if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).endswith(_PICKLED):
        path = os.fsdecode(path)
        to = os.path.splitext(path)[0] + ".safetensors"
        raise InvalidError(
            errno.EINVAL,
            f"path {path!r} ends as a file of torch.save() does, which may contain code and is not read; make a "
            "safetensors file of it once:\n"
            "    import torch, safetensors.torch\n"
            f'    safetensors.torch.save_file(torch.load({path!r}, map_location="cpu", weights_only=True), {to!r})\n'
            "format= says what it is if it is none",
        )


def paths_of(path):
    """Return the files that are meant, each with the names of tensors that it must have, or None."""
    if isinstance(path, (list, tuple)):
        if not path:
            raise InvalidError(errno.EINVAL, "path is an empty list")
        return tuple((one, None) for one in path)
    if not isinstance(path, (str, bytes, os.PathLike)) or not os.fsdecode(path).endswith(_INDEX):
        return ((path, None),)
    path = os.fsdecode(path)
    files = {}
    try:
        with open(path, encoding="utf-8") as file:
            index = json.load(file)
    except ValueError as error:  # it is no JSON, or no UTF-8
        raise InvalidError(errno.EINVAL, f"{path} is no index of a model: {error}") from None
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise InvalidError(errno.EINVAL, f"{path} is no index of a model: it has no weight_map of tensors and files")
    for tensor, name in names.items():
        if type(name) is not str or name != os.path.basename(name):
            raise InvalidError(
                errno.EINVAL, f"{path} is no index of a model: {tensor!r} is in {name!r}, and not in a file beside it"
            )
        files.setdefault(name, []).append(tensor)
    if not files:
        raise InvalidError(errno.EINVAL, f"{path} is no index of a model: its weight_map is empty")
    return tuple((os.path.join(os.path.dirname(path), name), tuple(files[name])) for name in sorted(files))


@contextlib.contextmanager
def shown(progress):
    """Return what to call with the bytes that are done and those in all, or None: for True a bar, if tqdm is there."""
    if progress is not True:
        yield progress
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:  # None: if stderr is no terminal

        def show(done, total):
            bar.total = total
            bar.update(done - bar.n)

        yield show


def below(prefix):
    """Return what the names below a prefix start with. It is a path, so a '/' at its end makes no difference."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix)!r}")
    return prefix.removesuffix("/") + "/" if prefix else ""
