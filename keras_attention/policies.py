"""How a dtype policy reaches the layers inside a layer."""

import contextlib
import contextvars

import keras

_kept = contextvars.ContextVar("kept", default=False)


@contextlib.contextmanager
def kept_policies():
    """Within it, `spread_policy` does nothing: saved parts return with their own policies."""
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)


def spread_policy(dtype, *layers):
    """Gives `dtype` to the layers, and their cells, that have no policy of their own.

    `dtype` is what the outer layer was given: None leaves every part as it is. A part
    has a policy of its own where it differs from the global one.
    """
    if dtype is None or _kept.get():
        return
    policy = keras.dtype_policies.get(dtype)
    for layer in layers:
        for part in _parts(layer):
            if part.dtype_policy == keras.config.dtype_policy():
                part.dtype_policy = policy


def _parts(layer):
    yield layer
    for inner in [getattr(layer, "cell", None), *getattr(layer, "cells", [])]:
        if isinstance(inner, keras.layers.Layer):
            yield from _parts(inner)
