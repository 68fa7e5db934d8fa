"""Compilation: eager, graph and XLA agree, nothing is traced per length, nothing warns."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import models
from keras_attention import AttentionDecoder, LuongAttention
from rows import ATTENTIONS, CELLS, D_V, ORDERS, U, array, arrays, decoder, normal

BACKEND = keras.backend.backend()
ON_TENSORFLOW = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="tf.function and retracing are TensorFlow's"
)
# PyTorch runs as it stands: Keras's jit_compile would ask torch.compile, which is another
# compiler and no promise of ours.
JIT = BACKEND != "torch"

# Every order with a plain cell and with a stack, the attentions in turn.
KINDS = [
    (attention, cell, order)
    for attention, (cell, order) in zip(
        ["bahdanau", "heads", "concat", "dot", "general", "scaled", "concat_heads", "heads"],
        [(cell, order) for cell in ("lstm", "stack") for order in ORDERS],
        strict=True,
    )
] + [("bahdanau", "gru", "before"), ("general", "simple", "after")]
EVERY_KIND = pytest.mark.parametrize("attention, cell, order", KINDS)


def test_the_kinds_are_all_kinds():
    seen = [set(names) for names in zip(*KINDS, strict=True)]
    assert seen == [set(ATTENTIONS), set(CELLS), set(ORDERS)]


def decoding_model(layer, memory_width):
    """A decoder alone, its memory masked as a whole, each of its results in the loss."""
    inputs, memory = keras.Input((None, 4)), keras.Input((None, memory_width))
    seen = layers.Masking()(memory)
    outputs, weights, state = layer(inputs, seen)
    ends = [layers.Dense(3, name=f"end_{i}")(one) for i, one in enumerate(state)]
    return keras.Model([inputs, memory], [layers.Dense(3)(outputs), weights, *ends])


def decoding_batch(model):
    batch = [normal(2, 3, 4), normal(2, 5, model.inputs[1].shape[-1], seed=1)]
    batch[1][1, 3:] = 0  # which Masking takes for padding
    wanted = [normal(*one.shape, seed=2) for one in arrays(model(batch))]
    return batch, wanted


def small_model(attention, cell, order):
    width = U if attention == "dot" else D_V
    return decoding_model(decoder(attention, cell, order), width)


@EVERY_KIND
def test_a_compiled_training_step_learns_what_an_eager_one_does(attention, cell, order):
    model = small_model(attention, cell, order)
    batch, wanted = decoding_batch(model)
    before, learnt = model.get_weights(), []
    for how in ({"run_eagerly": True}, {"jit_compile": JIT}):
        model.set_weights(before)
        model.compile(keras.optimizers.SGD(0.1), ["mse"] * len(wanted), **how)
        loss = model.train_on_batch(batch, wanted)
        assert np.isfinite(loss).all()
        learnt.append(model.get_weights())
    for start, eager, compiled in zip(before, *learnt, strict=True):
        np.testing.assert_allclose(compiled, eager, atol=1e-5)
        assert np.abs(eager - start).max() > 0


@pytest.mark.parametrize("order", ORDERS)
def test_predict_gives_what_an_eager_call_gives(order):
    model = small_model("heads", "stack", order)
    batch, _ = decoding_batch(model)
    eager = arrays(model(batch))
    model.compile(jit_compile=JIT)
    for found, want in zip(model.predict(batch, verbose=0), eager, strict=True):
        np.testing.assert_allclose(found, want, atol=1e-5)


@ON_TENSORFLOW
@pytest.mark.parametrize("order", ORDERS)
def test_a_tf_function_gives_what_an_eager_call_gives(order):
    import tensorflow as tf

    model = small_model("bahdanau", "stack", order)
    batch, _ = decoding_batch(model)
    batch = [tf.constant(one) for one in batch]
    eager = arrays(model(batch))
    for settings in ({"jit_compile": False}, {"jit_compile": True}):
        found = tf.function(lambda x: model(x), **settings)(batch)
        for one, want in zip(arrays(found), eager, strict=True):
            np.testing.assert_allclose(one, want, atol=1e-5)


@pytest.mark.parametrize("encoder", ["LSTM", "SimpleRNN"])
def test_a_whole_model_agrees_compiled_and_not(encoder):
    model = models.translator("concat", "lstm", "feeding", encoder=encoder)
    batch, _ = models.batch()
    eager = array(model(batch))
    model.compile(jit_compile=JIT)
    np.testing.assert_allclose(model.predict(batch, verbose=0), eager, atol=1e-5)


def dropping_model(order):
    dropped = {"dropout": 0.5, "recurrent_dropout": 0.5}
    cell = [layers.LSTMCell(5, seed=1, **dropped), layers.GRUCell(U, seed=2, **dropped)]
    attention = LuongAttention(num_heads=3, dropout=0.5, seed=3)
    return decoding_model(AttentionDecoder(cell, attention, **ORDERS[order]), D_V)


@pytest.mark.parametrize("order", ORDERS)
def test_dropout_draws_anew_at_each_compiled_step_and_leaves_nothing(order):
    model = dropping_model(order)
    batch, wanted = decoding_batch(model)
    model.compile(keras.optimizers.SGD(0.0), ["mse"] * len(wanted))
    untouched = arrays(model(batch))
    losses = [np.sum(model.train_on_batch(batch, wanted)) for _ in range(3)]
    assert np.isfinite(losses).all() and len({float(loss) for loss in losses}) == 3
    # A tracer, or a mask of that batch, that stayed on a layer would show here.
    for found, want in zip(arrays(model(batch)), untouched, strict=True):
        np.testing.assert_array_equal(found, want)
    dropped = arrays(model([one[:1] for one in batch], training=True))
    assert np.abs(dropped[0] - untouched[0][:1]).max() > 1e-3


class Counting(layers.Layer):
    """The identity, which counts how often Python runs through it."""

    runs = 0

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs):
        self.runs += 1
        return inputs


@ON_TENSORFLOW
@pytest.mark.parametrize("attention, cell, order", KINDS[:4])
def test_no_length_is_traced_anew(attention, cell, order):
    layer = decoder(attention, cell, order)
    counting = Counting()
    source, target = models.token_inputs()
    width = U if attention == "dot" else D_V
    embed = layers.Embedding(20, width, mask_zero=True)
    outputs, _, _ = layer(embed(target), embed(source))
    model = keras.Model([source, target], counting(outputs))
    counting.runs = 0
    for rows, source_steps, steps in [(4, 6, 3), (3, 4, 5), (5, 8, 7), (2, 11, 9)]:
        batch, _ = models.batch(rows, source_steps, steps)
        assert model.predict(batch, verbose=0).shape == (rows, steps, layer.output_size)
    assert 1 <= counting.runs <= 2


def test_a_masked_model_is_built_trained_and_saved_without_a_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Keras's PyTorch backend, about NumPy 2: as in pyproject.toml.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        model = models.translator("heads", "stack", "feeding", encoder="LSTM")
        batch, wanted = models.batch()
        model.compile("adam", models.masked_loss())
        model.fit(batch, wanted, batch_size=2, epochs=2, verbose=0)
        model.evaluate(batch, wanted, verbose=0)
        model.predict(batch, verbose=0)
        model.save(tmp_path / "it.keras")
        again = keras.models.load_model(tmp_path / "it.keras")
        again.summary(expand_nested=True, print_fn=lambda line: None)
        again.fit(batch, wanted, verbose=0)
