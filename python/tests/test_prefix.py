# SPDX-License-Identifier: Apache-2.0
"""A prefix is a path, wherever one is taken: it means the names below it, with or without a slash at its end."""

import asyncio

import numpy as np
import pytest

import tensorlease
from conftest import limit

A = np.arange(3)
NAMES = ["prefix/pp", "prefix/pp/a", "prefix/pp/b/c", "prefix/ppx", "prefix/ppx/a"]
BELOW = {"a", "b/c"}


@pytest.fixture(params=["prefix/pp", "prefix/pp/"])
def prefix(request, client):
    client.put_many({name: A for name in NAMES})
    yield request.param
    client.delete(prefix="prefix", missing_ok=True)


def full(names):
    return [f"prefix/pp/{name}" for name in sorted(names)]


def test_it_means_the_names_below_it(client, prefix):
    assert client.keys(prefix) == full(BELOW)
    assert [info.name for info in client.list(prefix)] == full(BELOW)
    assert set(client.get_many(prefix=prefix)) == BELOW
    assert list(client.get_many(prefix)) == full(BELOW)
    assert list(client.get_many(["a"], prefix=prefix)) == ["a"]
    assert set(client.get_many("b", prefix=prefix)) == {"b/c"}
    with client.watch(prefix=prefix, timeout=limit(60)) as watch:
        assert set(next(watch)) == BELOW
    with client.events(prefix, timeout=limit(60)) as events:
        assert {next(events).name for _ in BELOW} == set(full(BELOW))
    for nothing in (client.get_many, lambda prefix, timeout: client.get_many(prefix=prefix, timeout=timeout)):
        with pytest.raises(tensorlease.TimeoutError, match="no tensor came below 'prefix/p"):
            nothing("prefix/p", timeout=0.01)


def test_names_are_published_below_it(client, prefix):
    client.put_many({"d": A}, prefix=prefix)
    assert client.publish_many({"e": A}, prefix=prefix) == 1
    assert client.keys(prefix) == full(BELOW | {"d", "e"})
    client.put_many({"f": A}, prefix=prefix, replace=True)
    assert client.keys(prefix) == full({"f"})
    assert client.keys("prefix") == sorted((set(NAMES) - set(full(BELOW))) | set(full({"f"})))


def test_nothing_else_is_deleted(client, prefix):
    client.delete(prefix=prefix)
    assert client.keys("prefix") == ["prefix/pp", "prefix/ppx", "prefix/ppx/a"]
    with pytest.raises(tensorlease.NotFoundError, match="there is no tensor below 'prefix/pp"):
        client.delete(prefix=prefix)


def test_files(client, prefix, tmp_path):
    file, one = tmp_path / "a.npz", tmp_path / "a.npy"
    assert sorted(client.save(prefix, file)) == full(BELOW)
    client.delete(prefix=prefix)
    assert sorted(client.load(prefix, file).names) == full(BELOW)
    assert client.save(prefix, one) == ["prefix/pp"]
    assert client.load(prefix, one).names == ["prefix/pp"]


def test_a_cached_function_has_names_below_it(client, prefix):
    cached = tensorlease.cached(prefix, client=client, key=str)(lambda n: np.arange(n))
    cached(4)
    assert "prefix/pp/4" in client
    cached.cache_clear()
    assert client.keys("prefix") == ["prefix/pp", "prefix/ppx", "prefix/ppx/a"]


def test_a_watch_waits_for_names_below_it(client, prefix):
    async def step():
        async for found in client.watch(prefix=prefix, timeout=limit(60)):
            return set(found)

    assert asyncio.run(step()) == BELOW


def test_all_names_go_only_if_that_is_said(client, prefix):
    before = client.keys()
    with pytest.raises(tensorlease.InvalidError, match="everything=True"):
        client.delete(prefix="", missing_ok=True)
    with pytest.raises(TypeError, match="everything=True is for prefix=''"):
        client.delete(prefix=prefix, everything=True)
    with pytest.raises(TypeError, match="everything=True is for prefix=''"):
        client.delete("prefix/pp", everything=True)
    assert client.keys() == before
    client.delete(prefix="", everything=True)
    assert client.keys() == []


@pytest.mark.parametrize("wrong", ["/", "/prefix", "prefix//", "prefix/../x", "x" * 255])
def test_what_is_no_path_is_refused(client, wrong, tmp_path):
    for call in (
        client.keys,
        client.get_many,
        client.events,
        lambda x: client.get_many(prefix=x),
        lambda x: client.watch(prefix=x),
        lambda x: client.delete(prefix=x),
        lambda x: client.put_many({"a": A}, prefix=x),
        lambda x: client.put_many({"a": A}, prefix=x, replace=True),
        lambda x: client.save(x, tmp_path / "a.npz"),
    ):
        with pytest.raises(tensorlease.InvalidError, match="is not a name|no name can be below"):
            call(wrong)
