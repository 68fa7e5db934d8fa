"""AttentionDecoder: the order of the papers, one step = the whole sequence, the masks."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers

import reference
from keras_attention import AttentionDecoder, BahdanauAttention, LuongAttention
from rows import (
    ATTENTIONS,
    CELLS,
    D_V,
    ORDERS,
    STEPS,
    WIDEST,
    B,
    MaskSpy,
    S,
    T,
    U,
    array,
    arrays,
    decoder,
    lengths_mask,
    memory_width,
    normal,
    score_functions,
)

pytestmark = pytest.mark.usefixtures("op_by_op")

# Every attention with one order, every cell with every order: not the whole product.
TABLE = [(a, "gru", o) for a, o in zip(ATTENTIONS, itertools.cycle(ORDERS))] + [
    (a, c, o)
    for (c, o), a in zip(
        itertools.product(CELLS, ORDERS), itertools.cycle(["bahdanau", "heads", "general"])
    )
]
TABLE = sorted(set(TABLE))
EVERY = pytest.mark.parametrize("attention, cell, order", TABLE)


def as_64(layer):
    return [array(w) for w in layer.weights]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cell", STEPS)
@pytest.mark.parametrize("attention", ["bahdanau", "dot", "general", "concat"])
def test_the_order_is_the_paper_s(attention, cell, order):
    layer = AttentionDecoder(
        CELLS[cell](dtype=WIDEST),
        ATTENTIONS[attention](dtype=WIDEST),
        dtype=WIDEST,
        **ORDERS[order],
    )
    inputs, memory = normal(1, 3, 5, dtype=WIDEST), normal(1, 4, U, seed=1, dtype=WIDEST)
    state = [normal(1, U, seed=2 + i, dtype=WIDEST) for i in range(1 + (cell == "lstm"))]
    mask = np.array([[1, 1, 0, 1]])
    found = layer(inputs, memory, initial_state=state, memory_mask=mask)
    (score,) = score_functions(layer.attention)
    start = [one[0] for one in state]
    run = (STEPS[cell], as_64(layer.cell))
    if layer.attend == "before":
        outputs, weights, last = reference.decode_before(
            score, *run, inputs[0], memory[0], mask[0], start
        )
        if order == "before_attentional":
            combine = array(layer.attentional_projection.kernel)
            contexts = weights @ memory[0]
            outputs = np.tanh(np.concatenate([contexts, outputs], -1) @ combine)
    else:
        outputs, weights, last = reference.decode_after(
            score,
            *run,
            array(layer.attentional_projection.kernel),
            inputs[0],
            memory[0],
            mask[0],
            start,
            feed=np.zeros(11) if order == "feeding" else None,
        )
    wanted = [outputs, weights, *last]
    assert len(arrays(found)) == len(wanted)
    for one, want in zip(arrays(found), wanted, strict=True):
        np.testing.assert_allclose(one[0], want, atol=1e-10 if WIDEST == "float64" else 1e-5)
    for one, two in zip(
        arrays(found),
        arrays(layer(inputs, memory, initial_state=state, memory_mask=mask)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


def test_the_default_order_is_that_of_the_attention_s_paper():
    for make, attend in ((BahdanauAttention(3), "before"), (LuongAttention(), "after")):
        assert AttentionDecoder(layers.GRUCell(2), make).attend == attend


@EVERY
def test_step_by_step_equals_one_call(attention, cell, order):
    layer = decoder(attention, cell, order)
    inputs, memory = normal(2, 6, 5), normal(2, S, memory_width(attention), seed=1)
    masks = {"memory_mask": lengths_mask([5, 2], S)}
    steps_mask = lengths_mask([6, 3], 6)
    whole = arrays(layer(inputs, memory, inputs_mask=steps_mask, **masks))
    for cuts in ([2], range(1, 6)):
        state, pieces = None, []
        for part, kept in zip(
            np.split(inputs, cuts, 1), np.split(steps_mask, cuts, 1), strict=True
        ):
            *piece, state = layer(part, memory, initial_state=state, inputs_mask=kept, **masks)
            pieces.append(arrays(piece))
        outputs = np.concatenate([piece[0] for piece in pieces], 1)
        weights = np.concatenate([piece[1] for piece in pieces], -2)
        for one, want in zip([outputs, weights, *arrays(state)], whole, strict=True):
            np.testing.assert_allclose(one, want, atol=1e-6)


@EVERY
def test_the_public_step_equals_the_whole_call(attention, cell, order):
    layer = decoder(attention, cell, order)
    inputs, memory = normal(B, T, 4), normal(B, S, memory_width(attention), seed=1)
    mask = lengths_mask([5, 2], S)
    outputs, weights, *last = arrays(layer(inputs, memory, memory_mask=mask))
    source, state = layer.prepare(memory, mask), layer.get_initial_state(B)
    for t in range(T):
        output, weight, state = layer.step(inputs[:, t], state, source)
        np.testing.assert_allclose(array(output), outputs[:, t], atol=1e-6)
        np.testing.assert_allclose(array(weight), weights[..., t, :], atol=1e-6)
    for one, want in zip(arrays(state), last, strict=True):
        np.testing.assert_allclose(one, want, atol=1e-6)


@EVERY
def test_a_masked_step_freezes_the_state_and_its_results_are_zero(attention, cell, order):
    layer = decoder(attention, cell, order)
    inputs, memory = normal(2, 3, 4), normal(2, S, memory_width(attention), seed=1)
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    clean = arrays(layer(inputs, memory, inputs_mask=mask))
    for junk in (1e3, np.nan):
        inputs[mask == 0] = junk
        for one, want in zip(
            arrays(layer(inputs, memory, inputs_mask=mask)), clean, strict=True
        ):
            np.testing.assert_array_equal(one, want)
    outputs, weights, *state = clean
    assert (outputs[mask == 0] == 0).all()
    rows = np.moveaxis(weights, -2, 1)
    assert (rows[mask == 0] == 0).all() and (rows[mask == 1].sum(-1) > 0.99).all()
    for row, length in enumerate([2, 1]):
        alone = layer(inputs[row : row + 1, :length], memory[row : row + 1])
        for one, want in zip(arrays(alone[2]), state, strict=True):
            np.testing.assert_allclose(one[0], want[row], atol=1e-6)


@EVERY
def test_padding_the_memory_changes_nothing_and_an_empty_row_stays_finite(
    attention, cell, order
):
    layer = decoder(attention, cell, order)
    inputs, memory = normal(3, 4, 5), normal(3, S, memory_width(attention), seed=1)
    mask = lengths_mask([5, 2, 0], S)
    clean = arrays(layer(inputs, memory, memory_mask=mask))
    assert all(np.isfinite(one).all() for one in clean)
    assert (clean[1][2] == 0).all()
    padded, longer = np.pad(memory, ((0, 0), (0, 7), (0, 0))), np.pad(mask, ((0, 0), (0, 7)))
    padded[~longer] = np.nan
    found = arrays(layer(inputs, padded, memory_mask=longer))
    assert (found[1][..., S:] == 0).all()
    found[1] = found[1][..., :S]
    for one, want in zip(found, clean, strict=True):
        np.testing.assert_allclose(one, want, atol=1e-6)


@EVERY
def test_the_future_changes_no_earlier_output_by_a_bit(attention, cell, order):
    layer = decoder(attention, cell, order)
    inputs, memory = normal(2, 6, 5), normal(2, S, memory_width(attention), seed=1)
    outputs, weights, _ = layer(inputs, memory)
    inputs[:, 4:] += 1.0
    changed, changed_weights, _ = layer(inputs, memory)
    np.testing.assert_array_equal(array(changed)[:, :4], array(outputs)[:, :4])
    np.testing.assert_array_equal(
        array(changed_weights)[..., :4, :], array(weights)[..., :4, :]
    )
    assert np.abs(array(changed)[:, 4:] - array(outputs)[:, 4:]).max() > 1e-4


@pytest.mark.parametrize("order", ORDERS)
def test_a_memory_mask_may_differ_from_step_to_step(order):
    layer = decoder("heads", "lstm", order)
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    mask = normal(B, T, S, seed=2) > 0
    outputs, weights, last = layer(inputs, memory, memory_mask=mask)
    state = None
    for t in range(T):
        found = layer(inputs[:, t : t + 1], memory, initial_state=state, memory_mask=mask[:, t])
        np.testing.assert_allclose(array(found[0])[:, 0], array(outputs)[:, t], atol=1e-6)
        np.testing.assert_allclose(
            array(found[1])[..., 0, :], array(weights)[..., t, :], atol=1e-6
        )
        state = found[2]
    for one, want in zip(arrays(state), arrays(last), strict=True):
        np.testing.assert_allclose(one, want, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_the_inputs_mask_works_beside_an_initial_state(order):
    embed = layers.Embedding(9, 4, mask_zero=True)
    layer, memory = decoder(order=order), normal(B, S, D_V, seed=1)
    state, ids = normal(B, U, seed=2), np.array([[3, 4, 0], [5, 0, 0]])
    _, _, found = layer(embed(ids), memory, initial_state=state)
    for row, length in enumerate([2, 1]):
        *_, alone = layer(
            embed(ids[row : row + 1, :length]),
            memory[row : row + 1],
            initial_state=[state[row : row + 1]],
        )
        for one, want in zip(arrays(found), arrays(alone), strict=True):
            np.testing.assert_allclose(one[row], want[0], atol=1e-6)


def test_the_outputs_carry_the_inputs_mask_and_nothing_else_does():
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    spy, layer = MaskSpy(), decoder()
    embedded = layers.Embedding(9, 4, mask_zero=True)(ids)
    for inputs, mask in ((embedded, None), (normal(2, 3, 4), ids != 0)):
        for one in keras.tree.flatten(layer(inputs, normal(2, S, D_V), inputs_mask=mask)):
            spy(one)
    seen = spy.seen
    assert len(seen) == 6
    np.testing.assert_array_equal(array(seen[0]), ids != 0)
    np.testing.assert_array_equal(array(seen[3]), ids != 0)
    assert [seen[i] for i in (1, 2, 4, 5)] == [None] * 4


@pytest.mark.parametrize("order", ORDERS)
def test_lengths_are_free_on_both_sides(order):
    inputs, memory = keras.Input((None, 5)), keras.Input((None, D_V))
    layer = decoder("heads", order=order)
    outputs, weights, state = layer(inputs, memory)
    assert outputs.shape == (None, None, layer.output_size)
    assert weights.shape == (None, 3, None, None)
    assert [one.shape for one in state] == [(None, size) for size in layer.state_size]
    model = keras.Model([inputs, memory], [outputs, weights])
    for b, t, s in [(1, 1, 9), (4, 3, 1), (4, 3, 9)]:
        x, m = normal(b, t, 5), normal(b, s, D_V, seed=1)
        found = model([x, m])
        rows = [arrays(layer(x[i : i + 1], m[i : i + 1])[:2]) for i in range(b)]
        for index in range(2):
            wanted = np.concatenate([row[index] for row in rows])
            np.testing.assert_allclose(array(found[index]), wanted, atol=1e-5)


class PlainCell(layers.Layer):
    """A cell of one's own: no dropout, no `training`, an output that is not its state."""

    state_size, output_size = U, 3

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1] + U, U), name="kernel")
        self.out = self.add_weight(shape=(U, 3), name="out")

    def call(self, inputs, states):
        joined = keras.ops.concatenate([inputs, states[0]], axis=-1)
        state = keras.ops.tanh(keras.ops.matmul(joined, self.kernel))
        return keras.ops.matmul(state, self.out), [state]


@pytest.mark.parametrize("order", ORDERS)
def test_a_cell_of_one_s_own_works_in_every_order(order):
    layer = AttentionDecoder(PlainCell(), BahdanauAttention(5), **ORDERS[order])
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    outputs, _, last = layer(inputs, memory, training=True)
    state = layer.get_initial_state(B)
    for t in range(T):
        output, _, state = layer.step(inputs[:, t], state, layer.prepare(memory))
        np.testing.assert_allclose(array(output), array(outputs)[:, t], atol=1e-6)
    np.testing.assert_allclose(array(state[0]), array(last[0]), atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_dropout_of_cells_and_attention_acts_in_training_only_and_leaves_no_mask(order):
    cell = [layers.LSTMCell(5, dropout=0.4), layers.GRUCell(U, recurrent_dropout=0.4)]
    layer = AttentionDecoder(cell, BahdanauAttention(5, dropout=0.4), **ORDERS[order])
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    still = array(layer(inputs, memory)[0])
    once = array(layer(inputs, memory, training=True)[0])
    twice = array(layer(inputs, memory, training=True)[0])
    assert np.abs(once - still).max() > 1e-3 and np.abs(twice - once).max() > 1e-3
    np.testing.assert_array_equal(array(layer(inputs, memory)[0]), still)
    # Another batch size would meet a mask that was left behind.
    layer(normal(5, T, 4), normal(5, S, D_V), training=True)


def test_one_attention_may_serve_two_decoders():
    attention = LuongAttention("general")
    first = AttentionDecoder(layers.GRUCell(U), attention)
    second = AttentionDecoder(layers.LSTMCell(U), attention, input_feeding=True)
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    first(inputs, memory)
    kernel = array(attention.query_projection.kernel)
    second(inputs, memory)
    np.testing.assert_array_equal(array(attention.query_projection.kernel), kernel)


class TupleStates(layers.Layer):
    """A user's cell, with two states in a tuple."""

    state_size, output_size = (6, 6), 6

    def call(self, inputs, states):
        first, second = states
        new = 0.5 * first + inputs[:, :6]
        return new, (new, second + new)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize(
    "make", [lambda: [layers.LSTMCell(6)], lambda: [layers.LSTMCell(7), TupleStates()]]
)
def test_stacks_that_keras_nests_in_its_own_way_run_masked_as_step_by_step(make, order):
    layer = AttentionDecoder(make(), ATTENTIONS["general"](), **ORDERS[order])
    inputs, memory = normal(B, T, 8), normal(B, S, D_V, seed=1)
    mask = lengths_mask([T, T - 1], T)
    outputs, weights, state = layer(inputs, memory, inputs_mask=mask)
    pieces, going = [], None
    for t in range(T):
        step = layer(inputs[:, t : t + 1], memory, going, inputs_mask=mask[:, t : t + 1])
        pieces.append(arrays(step[:2]))
        going = step[2]
    np.testing.assert_allclose(
        array(outputs), np.concatenate([one[0] for one in pieces], axis=1), atol=1e-5
    )
    np.testing.assert_allclose(
        array(weights), np.concatenate([one[1] for one in pieces], axis=1), atol=1e-5
    )
    for whole, last in zip(arrays(state), arrays(going), strict=True):
        np.testing.assert_allclose(whole, last, atol=1e-5)


def test_a_first_state_is_filled_up_and_a_whole_one_asks_nothing_of_the_cell():
    class Stateless(layers.LSTMCell):
        def get_initial_state(self, batch_size=None):
            raise NotImplementedError

    layer = AttentionDecoder(
        Stateless(U), LuongAttention(), input_feeding=True, dtype="mixed_float16"
    )
    first = [normal(B, U, seed=seed) for seed in range(2)]
    state = layer.get_initial_state(B, first)
    assert {keras.backend.standardize_dtype(one.dtype) for one in state} == {"float16"}
    for one, wanted in zip(arrays(state), [*first, np.zeros((B, U))], strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-2)
    with pytest.raises(NotImplementedError):
        layer.get_initial_state(B, first[:1])


@pytest.mark.parametrize("order", ORDERS)
def test_a_batch_of_no_rows_gives_no_rows(order):
    outputs, weights, state = decoder("general", "gru", order)(
        normal(0, T, 4), normal(0, S, D_V), memory_mask=np.zeros((0, S), bool)
    )
    assert tuple(outputs.shape) == (0, T, outputs.shape[-1])
    assert tuple(weights.shape) == (0, T, S)
    assert all(one.shape[0] == 0 for one in state)
