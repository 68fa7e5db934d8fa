"""Layers inside a layer: their dtype policies, and how they and their seeds are saved."""

import keras


def spread_policy(dtype, layer, copy_of=None):
    """Gives `dtype` to a layer, and its cells, where they have no policy of their own.

    `dtype` is what the outer layer was given: None leaves every part as it is. A part
    without a policy of its own holds the very object of the global one; a part that was
    told "float32" holds an equal one, and so does one that comes from a config. A copy is
    told all, so ask what it is a copy of.
    """
    if dtype is None:
        return
    policy = keras.dtype_policies.get(dtype)
    original = layer if copy_of is None else copy_of
    for part, origin in zip(_parts(layer), _parts(original), strict=True):
        if origin.dtype_policy is keras.config.dtype_policy():
            part.dtype_policy = policy


def _parts(layer):
    yield layer
    for inner in [getattr(layer, "cell", None), *getattr(layer, "cells", [])]:
        if isinstance(inner, keras.layers.Layer):
            yield from _parts(inner)


def layers_inside(layer):
    """The layers that are attributes of `layer`, or in lists, tuples and dicts of them."""
    found, looked = [], list(vars(layer).values())
    while looked:
        one = looked.pop()
        if isinstance(one, keras.layers.Layer):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            looked.extend(one)
        elif isinstance(one, dict):
            looked.extend(one.values())
    return found


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


class SavedSeeds:
    """Mixed into a layer, saves the state of the random generators in it with its weights.

    Keras saves weights only, so that dropout starts over in a loaded model and training
    does not go on as it would have. Weights saved with other generators, or none, load as
    ever, and then dropout starts over.
    """

    def save_own_variables(self, store):
        super().save_own_variables(store)
        for key, state in self._seed_states().items():
            store[key] = state

    def load_own_variables(self, store):
        entries = {key: store[key] for key in store.keys()}
        seeds = {key: entries.pop(key) for key in list(entries) if key.startswith("seed_")}
        super().load_own_variables(entries)
        states = self._seed_states()
        if states.keys() == seeds.keys():
            for key, state in states.items():
                state.assign(seeds[key])

    def _seed_states(self):
        """By name: what Keras counts among the variables, but not among the weights."""
        weights = {id(weight) for weight in self.weights}
        states = [one for one in self.variables if id(one) not in weights]
        return {f"seed_{index}": state for index, state in enumerate(states)}
