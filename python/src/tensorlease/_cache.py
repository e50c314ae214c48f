# SPDX-License-Identifier: Apache-2.0
"""What is made once on a machine: Client.get_or_put(), load(once=True), and cached(), for what a function returns.

Who computes a tensor has claimed its name, and the daemon passes the claim on if it ends without a tensor. A claim only
saves work: where none can be had, the tensor is computed nevertheless.
"""

import errno
import functools
import hashlib
import math
import threading
import time

from ._errors import NoSpaceError, NotFoundError, PermissionDeniedError, TensorLostError, TimeoutError
from ._lock import ForkLock
from ._paths import below
from ._waiter import Pauses, is_gevent

_TRIES = 5
_LOOKS = 10
PATIENCE = 600.0  # seconds for another process to make something; nothing tells whether one that lives ever will
_LONGEST_PAUSE = 0.1  # seconds between a greenlet's looks at a claim
_PLAIN = (str, bytes, int, float, complex, bool, type(None))

_mine = threading.local()  # .makes: (where, name) -> whether this thread makes it just now, or only claims it


def check_trust(trust):
    """Return trust as a set of uids, or "all"."""
    if trust == "all":
        return trust
    if not isinstance(trust, (list, tuple, set, frozenset)) or not all(type(uid) is int for uid in trust):
        raise TypeError(f"trust must be 'all', or a list of uids besides this user's and root's, not {trust!r}")
    return frozenset(trust)


def check_owner(client, name, tensor, trust):
    """Release the tensor and raise a PermissionDeniedError if it is of a user who is not trusted."""
    uid = tensor.uid
    if trust == "all" or uid == 0 or uid in trust or uid == client._own_uid():
        return
    tensor.release()
    raise PermissionDeniedError(
        errno.EACCES,
        f"{name!r} belongs to user {uid}, and only what this user or root has made is taken: choose another name, or "
        f"trust that user with trust=[{uid}]",
    )


def _look(client, name, mode, trust):
    try:
        tensor = client.get(name, mode=mode)
    except NotFoundError:
        return None
    check_owner(client, name, tensor, trust)
    return tensor


def _publish(client, name, make, mode, trust, options):
    array = make()
    for _ in range(_TRIES):
        client.put(name, array, **options)
        tensor = _look(client, name, mode, trust)
        if tensor is not None:
            return tensor
    raise NoSpaceError(
        errno.ENOSPC, f"{name!r} went as soon as it was published: there is too little space for it, or its ttl is too short"
    )


def try_claim(client, name, timeout, held):
    """Return whether the name is ours to make; False if it is published; None if it is another's after so many seconds.

    The name of a claim that is ours is put into the list `held`, even if a signal's handler raises an exception as soon as it is.
    """
    end = time.monotonic() + timeout
    try:
        mine = client._claim(name, 0.0 if is_gevent() else timeout, held)
        pauses = Pauses(_LONGEST_PAUSE)
        while mine is None and time.monotonic() < end:  # only with gevent, whose other greenlets run meanwhile
            time.sleep(pauses.next())
            mine = client._claim(name, 0.0, held)
    except NoSpaceError:  # this user has as many claims as it may
        return True
    return mine


def _claim(client, name, end, timeout, held):
    mine = try_claim(client, name, max(0.0, end - time.monotonic()), held)
    if mine is None:
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"another client that is to make {name!r} has not done so within {timeout:g} s, or the daemon does not answer; "
            "timeout= sets how long to wait, and `tensorlease status --clients` shows the clients",
        )
    return mine


def get_or_put(client, name, make, mode, timeout, trust, options):
    """Client.get_or_put() has the words."""
    makes = _mine.__dict__.setdefault("makes", {})
    key = (client._place(), name)  # the same name elsewhere is another one
    outer = makes.get(key)
    end = time.monotonic() + timeout
    held = []
    try:
        while True:
            try:
                tensor = _look(client, name, mode, trust)
                if tensor is not None:
                    return tensor
                if outer:
                    raise RuntimeError(f"make() asks for {name!r}, which it is to make")
                if outer is None:  # else a signal's handler asks, which cannot wait for a claim of the code under it
                    makes[key] = False
                    if not _claim(client, name, end, timeout, held):
                        continue  # it is there, or was
            except TensorLostError:  # what is there is of no use, and nobody else needs a claim to replace it
                pass
            makes[key] = True
            return _publish(client, name, make, mode, trust, options)
    finally:
        try:
            if held:
                client._unclaim(name)
        finally:
            if outer is None:
                makes.pop(key, None)
            else:
                makes[key] = outer


# ---- Files ----


def _names_of(client, prefix):
    """All or none of the names, which are published and deleted together: so a list that comes twice is whole."""
    names = []
    for _ in range(_LOOKS):
        former, names = names, [prefix] if prefix in client else client.keys(prefix)
        if names == former:
            break
    return names


def load_once(client, prefix, load):
    """Client.load() has the words. The claim is on a name that no file's tensor has, as these are not known yet."""
    names = _names_of(client, prefix)
    if names:
        return names, {}
    claim = prefix + "/.load"
    held = []
    try:
        _claim(client, claim, math.inf, math.inf, held)
        names = _names_of(client, prefix)
        return (names, {}) if names else load()
    finally:
        if held:
            client._unclaim(claim)


# ---- Functions ----


def _text_of(value, function):
    """Return a text that no other value has. Named tuples may have a repr() that others have too."""
    if isinstance(value, tuple):
        kind = "" if type(value) is tuple else type(value).__qualname__
        return f"{kind}({','.join(_text_of(one, function) for one in value)})"
    if type(value) in _PLAIN:
        return repr(value)
    raise TypeError(
        f"{function}() is cached for all processes by arguments that are numbers, texts, bytes, None or tuples of "
        f"them, not {type(value)!r}: give cached() a key function"
    )


def _key_of(function, args, kwargs):
    named = tuple(sorted(kwargs.items()))
    return hashlib.sha256(_text_of((args, named), function).encode()).hexdigest()[:32]


_default = None
_default_lock = ForkLock()


def _default_client():
    global _default
    with _default_lock():
        if _default is None or _default.closed:
            from ._client import connect

            _default = connect()
        return _default


def cached(prefix, *, client=None, key=None, ttl=None, evictable=True, timeout=PATIENCE, trust=()):
    """Return a decorator that remembers, for all processes of this machine, the arrays that a function returns.

    The first call with some arguments computes the array, once on the machine; every other one gets a read-only Tensor
    over the same memory, as Client.get_or_put() does.
    prefix: of the names, which are PREFIX/ and a hash of the arguments. Functions need prefixes of their own, and a
        new one whenever they begin to return something else.
    client: a Client. None: one that the first call connects, to the default address.
    key: called with the arguments, it returns the rest of the name. None: the arguments must be numbers, texts, bytes,
        None or tuples of them.
    ttl, evictable, timeout, trust: as for Client.get_or_put().
    The function that is returned has cache_clear(), which deletes all tensors below PREFIX/, for all processes.
    """
    if not isinstance(prefix, str) or not prefix:
        raise TypeError(f"cached() takes a prefix of names, as in @tensorlease.cached('squares'), not {prefix!r}")

    def clear():
        user = client or _default_client()
        for name in user.keys(prefix):
            user.delete(name, missing_ok=True)

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            rest = _key_of(function.__qualname__, args, kwargs) if key is None else key(*args, **kwargs)
            if not isinstance(rest, str):
                raise TypeError(f"the key of cached() must return a str, the rest of the name, not {rest!r}")
            return (client or _default_client()).get_or_put(
                below(prefix) + rest,
                lambda: function(*args, **kwargs),
                ttl=ttl,
                evictable=evictable,
                timeout=timeout,
                trust=trust,
            )

        call.cache_clear = clear
        return call

    return decorate
