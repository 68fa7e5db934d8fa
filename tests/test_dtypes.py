"""Numbers narrower than float32: where they are used, and how near they stay."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import models
from keras_attention import AttentionDecoder, BahdanauAttention, BiEncoder, MaskedSoftmax
from rows import (
    ATTENTIONS,
    CELLS,
    D_Q,
    D_V,
    ORDERS,
    B,
    S,
    T,
    U,
    array,
    arrays,
    lengths_mask,
    memory_width,
    normal,
    query_width,
)

# Policy, its compute dtype, and how far it may be off, relative to the largest number.
POLICIES = {"mixed_float16": ("float16", 1e-2), "mixed_bfloat16": ("bfloat16", 4e-2)}
EVERY_DECODER = pytest.mark.parametrize("attention, cell, order", models.DECODERS)
ENCODERS = {
    "simple": lambda **kw: BiEncoder(layers.SimpleRNN(5), **kw),
    "gru": lambda **kw: BiEncoder(layers.GRU(5), merge_mode="mul", bridge=None, **kw),
    "lstm": lambda **kw: BiEncoder(layers.LSTM(5), state_units=7, **kw),
    "stack": lambda **kw: BiEncoder([layers.GRU(5), layers.LSTM(6)], merge_mode="sum", **kw),
    "cells": lambda **kw: BiEncoder(
        layers.RNN([layers.GRUCell(5), layers.LSTMCell(6)]), merge_mode="ave", **kw
    ),
}
OP_BY_OP = pytest.mark.usefixtures("op_by_op")


def check_every_policy(make, call):
    """Given to the layer or globally: narrow results near float32's, float32 variables."""
    wide = make(dtype="float32")
    call(wide)
    weights = [w + 0.1 * normal(*w.shape, seed=7) for w in wide.get_weights()]
    wide.set_weights(weights)
    wanted = arrays(call(wide))
    for policy, (dtype, tolerance) in POLICIES.items():
        for given in ("to the layer", "globally"):
            keras.config.set_dtype_policy(policy if given == "globally" else "float32")
            narrow = make() if given == "globally" else make(dtype=policy)
            call(narrow)
            narrow.set_weights(weights)
            found = keras.tree.flatten(call(narrow))
            said = f"{policy} {given}"
            for one, want in zip(found, wanted, strict=True):
                assert keras.backend.standardize_dtype(one.dtype) == dtype, said
                off = np.abs(array(one) - want).max() / np.abs(want).max()
                assert off <= tolerance, said
            assert any((array(a) != b).any() for a, b in zip(found, wanted, strict=True))
            for weight in narrow.weights:
                assert weight.dtype == "float32", said


def test_the_softmax_is_near_and_narrow():
    scores, mask = normal(B, T, S), lengths_mask([5, 2], S)[:, None]
    check_every_policy(MaskedSoftmax, lambda layer: layer(scores, mask=mask))


@OP_BY_OP
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_an_attention_is_near_and_narrow(attention):
    query, value = normal(B, T, query_width(attention)), normal(B, S, D_V, seed=1)
    masks = {"query_mask": lengths_mask([3, 1], T), "value_mask": lengths_mask([5, 2], S)}
    check_every_policy(ATTENTIONS[attention], lambda layer: layer(query, value, **masks))


@pytest.mark.parametrize("attention", ["bahdanau", "concat", "concat_heads", "scaled"])
def test_the_scores_keep_of_their_own_weight_what_float16_would_lose(attention):
    def scores(tensors):
        return looker.compute_scores(tensors[0], looker.project_keys(tensors[1]))

    looker = ATTENTIONS[attention](dtype="mixed_float16")
    looker.build((B, T, D_Q), (B, S, D_V))
    own = looker.scale if attention == "scaled" else looker.score_vector
    # Keras narrows weights inside a layer's call.
    layer = layers.Lambda(scores, dtype="mixed_float16")
    found, more = [], 1.0003  # in float16: 1
    for factor in (1.0, more):
        own.assign(np.full(own.shape, factor))
        found.append(array(layer([normal(B, T, D_Q), normal(B, S, D_V, seed=1)])))
    np.testing.assert_allclose(found[1], more * found[0], rtol=1e-5, atol=1e-6)


@OP_BY_OP
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_encoder_is_near_and_narrow(encoder):
    inputs, mask = normal(B, S, 4), lengths_mask([5, 2], S)
    check_every_policy(ENCODERS[encoder], lambda layer: layer(inputs, mask=mask))


@OP_BY_OP
@EVERY_DECODER
def test_a_decoder_is_near_and_narrow_from_a_float32_state(attention, cell, order):
    def make(**kwargs):
        parts = CELLS[cell](), ATTENTIONS[attention]()
        return AttentionDecoder(*parts, **ORDERS[order], **kwargs)

    def call(layer):
        state = [normal(B, n, seed=2 + i) for i, n in enumerate(layer.state_size)]
        return layer(inputs, memory, initial_state=state, **masks)

    inputs, memory = normal(B, T, 4), normal(B, S, memory_width(attention), seed=1)
    masks = {"inputs_mask": lengths_mask([3, 1], T), "memory_mask": lengths_mask([5, 2], S)}
    check_every_policy(make, call)


@pytest.mark.parametrize("order", ["before", "after", "feeding"])
@pytest.mark.parametrize("own", ["cell", "attention"])
def test_a_float32_part_in_a_float16_decoder_stays_inside_it(own, order):
    def run(policy):
        wide = {"dtype": "float32"}
        cell = layers.GRUCell(U, **(wide if own == "cell" else {}))
        attention = BahdanauAttention(5, **(wide if own == "attention" else {}))
        layer = AttentionDecoder(cell, attention, dtype=policy, **ORDERS[order])
        assert getattr(layer, own).compute_dtype == "float32"
        given = [keras.Input((None, 4)), keras.Input((None, D_V))]
        masks = [keras.Input((None,), dtype="bool") for _ in range(2)]
        results = layer(*given, inputs_mask=masks[0], memory_mask=masks[1])
        layer.set_weights([0.3 * normal(*w.shape, seed=7) for w in layer.weights])
        model = keras.Model([*given, *masks], results)
        return keras.tree.flatten(model.predict(batch, verbose=0))

    batch = [normal(B, T, 4), normal(B, S, D_V, seed=1)]
    batch += [lengths_mask([3, 1], T), lengths_mask([5, 2], S)]
    for one, want in zip(run("mixed_float16"), run("float32"), strict=True):
        assert (one.dtype, want.dtype) == ("float16", "float32")
        assert 0 < np.abs(one - want).max() <= 1e-2 * np.abs(want).max()


@OP_BY_OP
@pytest.mark.parametrize("outer", ["mixed_float16", "float32"])
@pytest.mark.parametrize("inner", ["mixed_float16", "float32"])
@pytest.mark.parametrize("everywhere", ["mixed_float16", "float32"])
@pytest.mark.parametrize("elsewhere", ["mixed_float16", "float32"])
def test_a_part_keeps_the_policy_it_was_given(outer, inner, everywhere, elsewhere, tmp_path):
    """Made under the one global policy, saved, and loaded under the other."""
    keras.config.set_dtype_policy(everywhere)
    inputs, memory = keras.Input((None, 4)), keras.Input((None, 6))
    attention = BahdanauAttention(9, dtype=inner)
    writer = AttentionDecoder(layers.GRUCell(7), attention, dtype=outer, name="writer")
    reader = BiEncoder(layers.GRU(7, dtype=inner), dtype=outer, name="reader")
    read, state = reader(memory)
    model = keras.Model([inputs, memory], writer(inputs, read, initial_state=state)[0])
    model.save(tmp_path / "it.keras")
    keras.config.set_dtype_policy(elsewhere)
    for one in (
        model,
        keras.models.load_model(tmp_path / "it.keras"),
        keras.models.clone_model(model),
    ):
        writer, reader = one.get_layer("writer"), one.get_layer("reader")
        found = {
            outer: [writer, writer.cell, reader, *reader.bridges],
            inner: [
                writer.attention,
                writer.attention.query_projection,
                writer.attention.key_projection,
                reader.layer,
                reader.layer.cell,
                reader.directions[0].backward_layer.cell,
            ],
        }
        for policy, parts in found.items():
            for part in parts:
                assert part.dtype_policy.name == policy, (one, part)


def test_fifty_steps_in_float16_on_padded_data_learn():
    keras.config.set_dtype_policy("mixed_float16")
    model = models.translator("bahdanau", "gru", "before")
    (source, target), _ = models.batch(8, 6, 5)
    model.compile(keras.optimizers.Adam(0.02), models.masked_loss())
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    losses = [model.train_on_batch([source, target], target) for _ in range(50)]
    losses = np.array([float(loss) for loss in losses])
    assert np.isfinite(losses).all()
    fifths = losses.reshape(5, 10).mean(axis=1)
    assert (np.diff(fifths) < 0).all() and losses[-1] < 0.5 * losses[0], losses
    assert all(np.isfinite(w).all() for w in model.get_weights())


def small_model(attention):
    inputs, memory = keras.Input((None, 4)), keras.Input((None, memory_width(attention)))
    read, state = BiEncoder(layers.GRU(U), merge_mode="sum", name="reader")(memory)
    attention = ATTENTIONS[attention](name="looker")
    writer = AttentionDecoder(layers.GRUCell(U), attention, name="writer")
    outputs, _, _ = writer(inputs, read, initial_state=state)
    return keras.Model([inputs, memory], layers.Dense(3)(outputs))


def small_batch(model):
    return [normal(B, T, 4), normal(B, S, model.inputs[1].shape[-1], seed=1)]


def quantize(model):
    with warnings.catch_warnings():
        # Keras says of every layer without matrices of its own that it stays as it is.
        warnings.filterwarnings("ignore", ".*does not have a `quantize` method")
        model.quantize("int8")


@OP_BY_OP
@pytest.mark.parametrize("attention", ["bahdanau", "general", "concat"])
def test_an_int8_model_stays_near_and_its_weights_load(attention, tmp_path):
    model = small_model(attention)
    batch = small_batch(model)
    before = array(model(batch))
    quantize(model)
    looker = model.get_layer("writer").attention
    assert looker.query_projection.kernel.dtype == "int8"
    near = array(model(batch))
    assert 0 < np.abs(near - before).max() < 0.05 * np.abs(before).max()
    model.save_weights(tmp_path / "it.weights.h5")
    again = small_model(attention)
    quantize(again)
    again.load_weights(tmp_path / "it.weights.h5")
    np.testing.assert_allclose(array(again(batch)), near, atol=1e-6)


@OP_BY_OP
@pytest.mark.parametrize("attention", ["bahdanau", "general", "concat"])
def test_lora_on_a_projection_trains_and_is_saved(attention, tmp_path):
    query, value = keras.Input((None, 4)), keras.Input((None, D_V))
    looker = ATTENTIONS[attention]()
    model = keras.Model([query, value], looker(query, value)[0])
    batch, wanted = [normal(B, T, 4), normal(B, S, D_V, seed=1)], normal(B, T, D_V, seed=2)
    before = array(model(batch))
    looker.query_projection.enable_lora(2)
    np.testing.assert_allclose(array(model(batch)), before, atol=1e-6)
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    for _ in range(2):  # in the first, only one of LoRA's two matrices moves
        model.train_on_batch(batch, wanted)
    lora = looker.query_projection.trainable_weights
    assert len(lora) == 2 and all(np.abs(array(w)).max() > 0 for w in lora)
    learnt = array(model(batch))
    assert np.abs(learnt - before).max() > 1e-4
    model.save(tmp_path / "it.keras")
    # Not compiled: Keras saves LoRA merged, so that the optimizer's state has no place.
    again = keras.models.load_model(tmp_path / "it.keras", compile=False)
    np.testing.assert_allclose(array(again(batch)), learnt, atol=1e-6)
