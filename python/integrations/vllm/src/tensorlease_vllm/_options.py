# SPDX-License-Identifier: Apache-2.0
"""The options that loader, engine and trainer take from users and from each other, and what each may be."""

import reprlib


def _is_name(value):
    return isinstance(value, str) and value != ""


def _is_text_or_none(value):
    return value is None or isinstance(value, str)


_RULES = {
    "prefix": (lambda value: _is_name(value) and value != "/", "a text such as 'llama/'"),
    "address": (_is_text_or_none, "the path of a socket, 'tensorlease://NAMESPACE/PATH' or null"),
    "namespace": (_is_text_or_none, "the name of a namespace or null"),
    "timeout": (lambda value: type(value) in (int, float) and value >= 0, "a number of seconds, 0 or more"),
    "server_timeout": (lambda value: type(value) in (int, float) and value > 0, "a number of seconds above 0"),
    "keep": (lambda value: isinstance(value, bool), "true or false"),
    "update": (_is_name, "the text that the trainer attached to the weights"),
    "names": (lambda value: isinstance(value, list) and value and all(map(_is_name, value)), "a list of names"),
}


def check(what, options):
    """Raise a ValueError, which names what, for the first of the options that is wrong."""
    for key, value in options.items():
        fits, allowed = _RULES[key]
        if not fits(value):
            raise ValueError(f"{what}: {key} is {reprlib.repr(value)}; it must be {allowed}")
