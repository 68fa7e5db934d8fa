"""Layers inside a layer: how a dtype policy reaches them, and how they are saved."""

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


def part_config(layer):
    """What a layer's config says of a layer inside it: arguments, and no shapes.

    Keras notes the shapes that a layer was built for. The outer layer builds its parts
    itself, and a copy of it may be built for other shapes.
    """
    return _without_shapes(keras.saving.serialize_keras_object(layer))


def _without_shapes(config):
    if isinstance(config, dict):
        kept = {key: value for key, value in config.items() if key != "build_config"}
        return {key: _without_shapes(value) for key, value in kept.items()}
    return [_without_shapes(one) for one in config] if isinstance(config, list) else config
