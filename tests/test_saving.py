"""Saving: what is loaded, in a fresh process too, goes on as if nothing had happened."""

import gc
import inspect
import json
import os
import subprocess
import sys
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import models
from keras_attention import (
    AttentionDecoder,
    BahdanauAttention,
    BiEncoder,
    LuongAttention,
    MaskedSoftmax,
)
from rows import B, S, T, array, arrays, normal

OP_BY_OP = pytest.mark.usefixtures("op_by_op")
ON_TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="SavedModel is TensorFlow's format"
)

EVERY_DECODER = pytest.mark.parametrize("attention, cell, order", models.DECODERS)

ENCODERS = {
    "stack": lambda: BiEncoder([layers.LSTM(4), layers.GRU(6)], state_units=7),
    "cells": lambda: BiEncoder(layers.RNN([layers.LSTMCell(4), layers.GRUCell(6)])),
    "sum": lambda: BiEncoder(layers.SimpleRNN(6), merge_mode="sum"),
    "mul": lambda: BiEncoder(layers.LSTM(6), merge_mode="mul", bridge="relu"),
    "no bridge": lambda: BiEncoder(layers.GRU(6), merge_mode="ave", bridge=None),
}

# What is predicted at once, what the next step (with dropout) loses, and what it learns.
GO_ON = """
def go_on(model, source, target, wanted):
    found = {"predicted": model.predict([source, target], verbose=0)}
    found["loss"] = float(model.train_on_batch([source, target], wanted))
    found["learnt"] = model.predict([source, target], verbose=0)
    return found
"""
FRESH = """
import keras, keras_attention, sys
import numpy as np
{classes}
{go_on}
folder = sys.argv[1]
batch = np.load(folder + "/batch.npz")
for kind in {kinds}:
    model = keras.models.load_model(folder + "/" + kind + ".keras")
    found = go_on(model, batch["source"], batch["target"], batch["wanted"])
    np.savez(folder + "/" + kind + ".npz", **found)
"""
exec(GO_ON)  # defines go_on: this process runs what the fresh one does


def run_fresh(code, *arguments):
    """Python code in a new process, where nothing of this one is known."""
    settings = {"KERAS_BACKEND": keras.backend.backend(), "OMP_NUM_THREADS": "1"}
    # As in conftest.py, for the same random numbers and the same rounding.
    settings |= {"JAX_ENABLE_X64": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ran = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def read(path):
    with np.load(path) as file:
        return dict(file)


def test_a_fresh_process_goes_on_as_the_uninterrupted_one(tmp_path):
    (source, target), wanted = models.batch(4, 3, 2)
    np.savez(tmp_path / "batch.npz", source=source, target=target, wanted=wanted)
    uninterrupted = {}
    for kind, make in models.ODD.items():
        model = make()
        # JAX alone compiles sooner than it runs one operation after the other.
        eagerly = keras.backend.backend() != "jax"
        model.compile("adam", models.masked_loss(), run_eagerly=eagerly)
        for _ in range(2):
            model.train_on_batch([source, target], wanted)
        model.save(tmp_path / f"{kind}.keras")
        uninterrupted[kind] = go_on(model, source, target, wanted)  # noqa: F821

    # The user's own class is the user's to define; all else comes with the package.
    classes = inspect.getsource(models.Translator)
    kinds = list(models.ODD)
    run_fresh(FRESH.format(classes=classes, go_on=GO_ON, kinds=kinds), tmp_path)
    for kind, wanted in uninterrupted.items():
        found = read(tmp_path / f"{kind}.npz")
        assert set(found) == set(wanted) == {"predicted", "loss", "learnt"}
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=kind + name)
        assert np.abs(wanted["learnt"] - wanted["predicted"]).max() > 1e-5


@OP_BY_OP
@EVERY_DECODER
def test_loaded_weights_a_clone_and_a_config_make_the_same_model(
    attention, cell, order, tmp_path
):
    batch, _ = models.batch()
    model = models.translator(attention, cell, order)
    model.set_weights([w + 0.1 * normal(*w.shape, seed=7) for w in model.get_weights()])
    wanted = array(model(batch))
    model.save_weights(tmp_path / "it.weights.h5")
    config = json.dumps(model.get_config())
    copies = {
        "built anew": models.translator(attention, cell, order),
        "clone": keras.models.clone_model(model),
        "config": type(model).from_config(json.loads(config)),
    }
    for name, again in copies.items():
        again.load_weights(tmp_path / "it.weights.h5")
        assert not {id(w) for w in again.weights} & {id(w) for w in model.weights}
        np.testing.assert_allclose(array(again(batch)), wanted, atol=1e-6, err_msg=name)


@OP_BY_OP
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_loads_with_its_masks_and_states(name, tmp_path):
    tokens = keras.Input((None,), dtype="int32")
    memory, state = ENCODERS[name]()(layers.Embedding(20, 5, mask_zero=True)(tokens))
    model = keras.Model(tokens, [memory, *state])
    model.save(tmp_path / "it.keras")
    again = keras.models.load_model(tmp_path / "it.keras")
    (source, _), _ = models.batch()
    for one, want in zip(arrays(again(source)), arrays(model(source)), strict=True):
        np.testing.assert_allclose(one, want, atol=1e-6)
    assert json.dumps(again.get_config()) == json.dumps(model.get_config())


KERNELS = {
    "kernel_initializer": keras.initializers.HeNormal(3),
    "kernel_regularizer": keras.regularizers.L2(0.25),
    "dropout": 0.25,
    "seed": 7,
}
GIVEN = {
    MaskedSoftmax: {"axis": 1},
    BahdanauAttention: {
        "units": 9,
        **KERNELS,
    },
    LuongAttention: {
        "score": "concat",
        "units": 9,
        "num_heads": 3,
        "use_scale": True,
        **KERNELS,
    },
    BiEncoder: {"merge_mode": "sum", "state_units": 11, "bridge": keras.activations.relu},
    AttentionDecoder: {
        "cell": layers.LSTMCell(5, dropout=0.25, name="my_cell"),
        "attention": LuongAttention("dot", use_scale=True, name="my_attention"),
        "attend": "after",
        "attentional_units": 13,
        "input_feeding": True,
    },
}


@pytest.mark.parametrize("layer", GIVEN)
def test_every_argument_is_an_attribute_that_survives(layer):
    given = {**GIVEN[layer], "name": "mine", "dtype": "float64", "trainable": False}
    extra = {"layer": layers.GRU(5)} if layer is BiEncoder else {}
    made = layer(**given, **extra)
    loaded = layer.from_config(json.loads(json.dumps(made.get_config())))
    clone = layer.from_config(loaded.get_config())
    given["dtype"] = "float64"
    for one in (made, loaded, clone):
        for name, value in given.items():
            attribute = getattr(one, name)
            want = keras.saving.serialize_keras_object(value)
            assert keras.saving.serialize_keras_object(attribute) == want, name


@keras.saving.register_keras_serializable(package="theirs")
class Remembered(layers.GRU):
    """Notes whether each of its instances still lives."""

    made = []

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.made.append(weakref.ref(self))


def test_no_layer_that_loading_makes_dies_and_leaves_its_id_to_another(tmp_path):
    """Keras takes two objects of one id for the same: a backward layer for a forward one."""
    inputs = keras.Input((None, 4))
    memory, _ = BiEncoder([Remembered(5), Remembered(6)])(inputs)
    keras.Model(inputs, memory).save(tmp_path / "it.keras")
    Remembered.made.clear()
    loaded = keras.models.load_model(tmp_path / "it.keras")
    gc.collect()
    assert len(Remembered.made) >= 4
    assert all(reference() is not None for reference in Remembered.made)
    assert loaded.count_params() > 0


@OP_BY_OP
@pytest.mark.parametrize("name", ["reader", "writer"])
def test_dropout_goes_on_where_it_stopped(name, tmp_path):
    def call(model):
        return arrays(model(batch, training=True))

    layer = models.odd_encoder() if name == "reader" else models.odd_decoder()
    batch = [normal(B, 2, 4), normal(B, 3, 6, seed=1)][: 1 + (name == "writer")]
    inputs = [keras.Input((None, one.shape[-1])) for one in batch]
    model = keras.Model(inputs, keras.tree.flatten(layer(*inputs)))
    call(model)
    model.save(tmp_path / "it.keras")
    again, anew = (
        keras.models.load_model(tmp_path / "it.keras"),
        keras.models.clone_model(model),
    )
    anew.set_weights(model.get_weights())
    for want, found, restarted in zip(call(model), call(again), call(anew), strict=True):
        np.testing.assert_allclose(found, want, atol=1e-6)
        assert np.abs(restarted - want).max() > 1e-4


@OP_BY_OP
def test_weights_without_random_state_load_into_a_model_with_dropout(tmp_path):
    def model(dropout):
        inputs, memory = keras.Input((None, 4)), keras.Input((None, 6))
        attention = BahdanauAttention(9, dropout=dropout, seed=1)
        return keras.Model([inputs, memory], list(attention(inputs, memory)))

    batch = [normal(B, T, 4), normal(B, S, 6, seed=1)]
    for first, second in ((0.0, 0.5), (0.5, 0.0)):
        saved, loaded = model(first), model(second)
        saved(batch, training=True)
        saved.save_weights(tmp_path / "it.weights.h5")
        loaded.load_weights(tmp_path / "it.weights.h5")
        np.testing.assert_array_equal(array(loaded(batch)[0]), array(saved(batch)[0]))


SERVE = """
import sys
import numpy as np
import tensorflow as tf
folder = sys.argv[1]
batches = np.load(folder + "/batches.npz")
served = {}
for kind in ("list", "dict"):
    loaded = tf.saved_model.load(folder + "/" + kind)
    for size in ("small", "large", "padded"):
        source, target = batches[size + "_source"], batches[size + "_target"]
        given = [source, target] if kind == "list" else {"source": source, "target": target}
        served[kind + "_" + size] = loaded.serve(given).numpy()
assert "keras_attention" not in sys.modules
np.savez(folder + "/served.npz", **served)
"""


@ON_TENSORFLOW
def test_an_export_serves_any_batch_and_length_without_the_package(tmp_path):
    made = {
        "list": models.translator("heads", "stack", "feeding", encoder="LSTM"),
        "dict": models.translator("bahdanau", "gru", "before", inputs=as_dict),
    }
    large = models.batch(9, 13, 12)[0]
    batches = {
        "small": models.batch(1, 1, 1, padded=False)[0],
        "large": large,
        "padded": [models.pad(tokens, 4) for tokens in large],
    }
    flat = {f"{k}_{n}": v for k, b in batches.items() for n, v in as_dict(b).items()}
    np.savez(tmp_path / "batches.npz", **flat)
    for kind, model in made.items():
        model.export(tmp_path / kind, format="tf_saved_model", verbose=False)
    run_fresh(SERVE, tmp_path)
    served = read(tmp_path / "served.npz")
    for kind, model in made.items():
        for size in ("small", "large"):
            given = batches[size] if kind == "list" else as_dict(batches[size])
            found = served[f"{kind}_{size}"]
            np.testing.assert_allclose(found, array(model(given)), atol=1e-5)
        unpadded = served[f"{kind}_padded"][:, :12]
        np.testing.assert_allclose(unpadded, served[f"{kind}_large"], atol=1e-6)


def as_dict(pair):
    return dict(zip(("source", "target"), pair, strict=True))
