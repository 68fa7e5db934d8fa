"""BiEncoder: memory and first state against the reference, wherever the padding stands."""

import keras
import numpy as np
import pytest
from keras import layers

import reference
from keras_attention import BiEncoder
from rows import STEPS, MaskSpy, U, array, arrays, normal

pytestmark = pytest.mark.usefixtures("op_by_op")

LAYERS = {
    "simple": lambda **kw: layers.SimpleRNN(U, bias_initializer="ones", **kw),
    "gru": lambda **kw: layers.GRU(U, bias_initializer="ones", **kw),
    "lstm": lambda **kw: layers.LSTM(U, bias_initializer="ones", **kw),
}
MERGES = {
    "concat": lambda f, b: np.concatenate([f, b], -1),
    "sum": lambda f, b: f + b,
    "ave": lambda f, b: (f + b) / 2,
    "mul": lambda f, b: f * b,
}
PADDINGS = {
    "right": [1, 1, 1, 0, 0, 0],
    "left": [0, 0, 0, 1, 1, 1],
    "gap": [1, 0, 0, 1, 0, 1],
    "empty": [0, 0, 0, 0, 0, 0],
}


def expected(encoder, kind, inputs, mask):
    """Memory and the final states of both directions, row by row, from the reference."""
    both = encoder.directions[0]
    weights = [
        [array(w) for w in direction.cell.weights]
        for direction in (both.forward_layer, both.backward_layer)
    ]
    sizes = [U, U] if kind == "lstm" else [U]
    memory, finals = [], []
    for row, kept in zip(inputs.astype("float64"), mask, strict=True):
        forward, last = reference.run_encoder(STEPS[kind], row, kept, weights[0], sizes)
        backward, first = reference.run_encoder(
            STEPS[kind], row[::-1], kept[::-1], weights[1], sizes
        )
        memory.append(MERGES[encoder.merge_mode](forward, backward[::-1]))
        finals.append([np.concatenate(pair) for pair in zip(last, first, strict=True)])
    return np.array(memory), [np.array(one) for one in zip(*finals, strict=True)]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("merge_mode", MERGES)
def test_memory_and_states_equal_the_reference_wherever_the_padding_stands(kind, merge_mode):
    mask = np.array(list(PADDINGS.values()), bool)
    inputs = normal(4, 6, 5)
    encoder = BiEncoder(LAYERS[kind](), merge_mode=merge_mode, bridge=None)
    encoder(inputs)
    memory, state = expected(encoder, kind, inputs, mask)
    for junk in (50 * normal(4, 6, 5, seed=1), np.full((4, 6, 5), np.nan, "float32")):
        padded = np.where(mask[..., None], inputs, junk)
        found = arrays(encoder(padded, mask=mask))
        np.testing.assert_allclose(found[0], memory, atol=1e-5)
        assert (found[0][~mask] == 0).all()
        assert (found[0][3] == 0).all() and all((one[3] == 0).all() for one in found[1:])
        for one, wanted in zip(found[1:], state, strict=True):
            np.testing.assert_allclose(one, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("padding", ["right", "left", "gap"])
def test_padding_gives_the_values_of_no_padding_through_a_stack(kind, padding):
    mask = np.array([PADDINGS[padding]] * 2, bool)
    real = normal(2, 3, 5)
    padded = np.full((2, 6, 5), np.nan, "float32")
    padded[mask] = real.reshape(6, 5)
    encoder = BiEncoder([LAYERS[kind](), LAYERS[kind]()], state_units=3)
    memory, *state = arrays(encoder(real))
    found, *found_state = arrays(encoder(padded, mask=mask))
    np.testing.assert_allclose(found[mask].reshape(memory.shape), memory, atol=1e-6)
    for one, wanted in zip(found_state, state, strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_bridge_is_a_tanh_of_both_ends_and_linear_for_a_cell_state(kind):
    inputs, encoder = normal(2, 5, 3), BiEncoder(LAYERS[kind](), state_units=4)
    encoder.build((2, 5, 3))
    for dense in encoder.bridges:
        dense.kernel.assign(normal(2 * U, 4, seed=2))
        dense.bias.assign(normal(4, seed=3))
    _, *state = arrays(encoder(inputs))
    _, finals = expected(encoder, kind, inputs, np.ones((2, 5), bool))
    wanted = [
        final @ array(d.kernel) + array(d.bias)
        for final, d in zip(finals, encoder.bridges, strict=True)
    ]
    wanted[0] = np.tanh(wanted[0])
    for one, want in zip(state, wanted, strict=True):
        np.testing.assert_allclose(one, want, atol=1e-5)


def test_the_states_of_a_stack_are_those_of_the_top():
    for layer in (
        [layers.GRU(5), layers.LSTM(U)],
        layers.RNN([layers.GRUCell(5), layers.LSTMCell(U)]),
    ):
        memory, state = BiEncoder(layer)(normal(2, 5, 3))
        assert tuple(memory.shape) == (2, 5, 2 * U)
        assert [tuple(one.shape) for one in state] == [(2, U), (2, U)]
        _, state = BiEncoder(layer, bridge=None)(normal(2, 5, 3))
        assert [tuple(one.shape) for one in state] == [(2, 2 * U), (2, 2 * U)]


def test_the_mask_travels_on_the_memory_and_lengths_are_free():
    ids = keras.Input((None,), dtype="int32")
    embedded = layers.Embedding(20, 5, mask_zero=True)(ids)
    memory, state = BiEncoder(layers.GRU(U), state_units=3)(embedded)
    assert memory.shape == (None, None, 2 * U) and [s.shape for s in state] == [(None, 3)]
    spy = MaskSpy()
    model = keras.Model(ids, [spy(memory), *state])
    spy.seen.clear()
    source = np.array([[3, 7, 2, 9, 4], [5, 8, 0, 0, 0]])
    memory, state = model(source)
    np.testing.assert_array_equal(array(spy.seen[0]), source != 0)
    longer = arrays(model(np.pad(source, ((0, 0), (0, 3)))))
    np.testing.assert_allclose(longer[0][:, :5], array(memory), atol=1e-6)
    np.testing.assert_allclose(longer[1], array(state), atol=1e-6)
    assert (longer[0][:, 5:] == 0).all()


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_a_positional_mask_is_the_mask_and_travels_on(dtype):
    inputs, mask = normal(2, 5, 3), np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype)
    encoder, spy = BiEncoder(layers.GRU(U)), MaskSpy()
    symbols = keras.Input((None, 3)), keras.Input((None,), dtype=dtype)
    memory, state = encoder(*symbols)
    model = keras.Model(symbols, [spy(memory), *state])
    wanted = arrays(encoder(inputs, mask=mask.astype(bool)))
    spy.seen.clear()
    memory, state = encoder(inputs, mask)
    for found in ([spy(memory), *state], model([inputs, mask])):
        for one, want in zip(arrays(found), wanted, strict=True):
            np.testing.assert_allclose(one, want, atol=1e-6)
    for seen in (spy.seen[0], spy.seen[1]):
        np.testing.assert_array_equal(array(seen), mask)


def test_dropout_inside_the_layers_acts_in_training_only():
    encoder = BiEncoder(
        [LAYERS["gru"](dropout=0.3, recurrent_dropout=0.2), LAYERS["lstm"](dropout=0.3)]
    )
    inputs, mask = normal(2, 5, 3), np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    still, *_ = arrays(encoder(inputs, mask=mask))
    np.testing.assert_array_equal(array(encoder(inputs, mask=mask)[0]), still)
    dropped = array(encoder(inputs, mask=mask, training=True)[0])
    assert np.abs(dropped - still).max() > 1e-3 and (dropped[1, 2:] == 0).all()
