"""The attention layers against the reference formulas, and what padding must not do."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import reference
from gradients import input_gradients
from keras_attention import BahdanauAttention, LuongAttention
from rows import (
    ATTENTIONS,
    D_V,
    B,
    MaskSpy,
    S,
    T,
    array,
    arrays,
    lengths_mask,
    normal,
    query_width,
    score_functions,
)

pytestmark = pytest.mark.usefixtures("op_by_op")

EVERY = pytest.mark.parametrize("name", ATTENTIONS)
HEADS = {"heads": 3, "concat_heads": 3}
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}

MEMORY = np.array([[1, 0, 0.2], [0.5, 0.5, 0.1], [0.1, 0.9, 0.3]])
QUERY = np.array([0.9, 0.1, 0.2])


def expected(layer, name, query, value, query_mask=None, value_mask=None):
    """Context and weights from the reference, head by head, concatenated."""
    heads = HEADS.get(name, 1)
    query, value = query.astype("float64"), value.astype("float64")
    contexts, weights = [], []
    for head, score in enumerate(score_functions(layer, heads)):
        context, alignment = reference.attention(score, query, value, query_mask, value_mask)
        size = value.shape[-1] // heads
        contexts.append(context[..., head * size : (head + 1) * size])
        weights.append(alignment)
    return np.concatenate(contexts, -1), weights[0] if heads == 1 else np.stack(weights, 1)


def test_the_lesson_s_dot_product_example():
    _, weights = LuongAttention("dot")(QUERY[None], MEMORY[None])
    np.testing.assert_array_equal(array(weights).round(3), [[0.464, 0.305, 0.231]])
    _, weights = LuongAttention("dot")(np.array([[0.1, 0.9, 0.3]]), MEMORY[None])
    assert array(weights).argmax() == 2


def test_the_lesson_s_additive_example():
    w_a, u_a = (
        np.array([[0.6, 0.3, 0.1], [0.1, 0.5, 0.4]]),
        np.array([[0.5, 0.2, 0.3], [0.2, 0.6, 0.2]]),
    )
    v_a = np.array([0.8, 0.6])
    layer = BahdanauAttention(2)
    layer.build((1, 3), (1, 3, 3))
    # The lesson's rows are the attention dimension; Keras stores (input, output).
    layer.query_projection.kernel.assign(w_a.T)
    layer.key_projection.kernel.assign(u_a.T)
    layer.score_vector.assign(v_a)
    scores = np.tanh(MEMORY @ u_a.T + w_a @ QUERY) @ v_a
    weights = np.exp(scores) / np.exp(scores).sum()
    context, found = layer(QUERY[None].astype("float32"), MEMORY[None].astype("float32"))
    np.testing.assert_allclose(array(found)[0], weights, atol=1e-6)
    np.testing.assert_allclose(array(context)[0], weights @ MEMORY, atol=1e-6)


@EVERY
@pytest.mark.parametrize("sizes", ["different", "equal"])
@pytest.mark.parametrize("masks", ["none", "value", "per query", "both"])
def test_context_and_weights_equal_the_reference(name, sizes, masks):
    b, t, s, q, v = (B, T, S, query_width(name), D_V) if sizes == "different" else (3,) * 5
    query, value = normal(b, t, q), normal(b, s, v, seed=1)
    query_mask, value_mask = None, None
    if masks in ("value", "both"):
        value_mask = lengths_mask([s, 0, 2][:b], s)
    if masks == "per query":
        value_mask = normal(b, t, s, seed=2) > 0
    if masks == "both":
        query_mask = lengths_mask([2, 1, 3][:b], t)
    layer = ATTENTIONS[name]()
    results = layer(query, value, query_mask=query_mask, value_mask=value_mask)
    wanted = expected(layer, name, query, value, query_mask, value_mask)
    for found, want in zip(arrays(results), wanted, strict=True):
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, atol=1e-5)
        assert (found[want == 0] == 0).all()


@EVERY
def test_weights_sum_to_one_over_the_kept_steps_and_permute_with_the_memory(name):
    query, value = normal(B, T, query_width(name)), normal(B, S, D_V, seed=1)
    order = [3, 0, 4, 2, 1]
    layer = ATTENTIONS[name]()
    context, weights = arrays(layer(query, value))
    np.testing.assert_allclose(weights.sum(-1), np.ones(weights.shape[:-1]), atol=1e-6)
    permuted = arrays(layer(query, value[:, order]))
    np.testing.assert_allclose(permuted[0], context, atol=1e-6)
    np.testing.assert_allclose(permuted[1], weights[..., order], atol=1e-6)


@EVERY
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_padding_changes_nothing_whatever_stands_in_it(name, dtype):
    query, value = normal(2, 3, query_width(name)), normal(2, 5, 6, seed=1)
    mask = lengths_mask([5, 2], 5)
    layer = ATTENTIONS[name](dtype=dtype)
    context, weights = arrays(layer(query, value, value_mask=mask))
    long_mask = np.pad(mask, ((0, 0), (0, 7)))
    tolerance = 1e-6 if dtype == "float32" else TOLERANCE[dtype]
    for junk in (0.0, 1e30, np.inf, np.nan):
        padded = np.pad(value, ((0, 0), (0, 7), (0, 0)))
        padded[~long_mask] = junk
        found = arrays(layer(query, padded, value_mask=long_mask))
        np.testing.assert_allclose(found[0], context, atol=tolerance)
        np.testing.assert_allclose(found[1][..., :5], weights, atol=tolerance)
        kept = np.broadcast_to(
            np.expand_dims(long_mask, tuple(range(1, found[1].ndim - 1))), found[1].shape
        )
        assert (found[1][~kept] == 0).all()
        np.testing.assert_allclose(found[1].sum(-1), 1.0, atol=TOLERANCE[dtype])
        assert np.isfinite(found[0]).all()
        layer_input = ops.convert_to_numpy(padded)
        of_query, of_value = input_gradients(
            lambda q, v: ops.sum(ops.cast(layer(q, v, value_mask=long_mask)[0], "float32")),
            query,
            layer_input,
        )
        assert np.isfinite(of_query).all() and np.isfinite(of_value).all()
        assert (of_value[~long_mask] == 0).all()
        assert (of_value[long_mask] != 0).any()


@EVERY
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_row_with_nothing_to_attend_to_is_zero_and_harms_no_other(name, dtype):
    query, value = normal(2, 1, query_width(name)), normal(2, 3, 6, seed=1)
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    layer = ATTENTIONS[name](dtype=dtype)
    context, weights = arrays(layer(query, value, value_mask=mask))
    assert (context[1] == 0).all() and (weights[1] == 0).all()
    alone = arrays(layer(query[:1], value[:1], value_mask=mask[:1]))
    tolerance = TOLERANCE.get(dtype, 1e-12)
    np.testing.assert_allclose(context[:1], alone[0], atol=tolerance)
    np.testing.assert_allclose(weights[:1], alone[1], atol=tolerance)
    gradients = input_gradients(
        lambda q, v: ops.sum(ops.cast(layer(q, v, value_mask=mask)[0], "float32")),
        query.astype("float32"),
        value.astype("float32"),
    )
    for gradient in gradients:
        assert np.isfinite(gradient).all() and (gradient[1] == 0).all()


@EVERY
def test_true_in_a_mask_keeps(name):
    query, value = normal(B, T, query_width(name)), normal(B, S, D_V, seed=1)
    context, _ = ATTENTIONS[name]()(query, value, value_mask=np.eye(S, dtype=bool)[[3] * B])
    np.testing.assert_array_equal(array(context), np.repeat(value[:, 3:4], T, axis=1))


@EVERY
def test_a_masked_query_row_with_nan_in_it_changes_nothing(name):
    query, value = normal(B, T, query_width(name)), normal(B, S, D_V, seed=1)
    mask = lengths_mask([3, 1], T)
    layer = ATTENTIONS[name]()
    clean = arrays(layer(query, value, query_mask=mask))
    query[~mask] = np.nan
    found = arrays(layer(query, value, query_mask=mask))
    np.testing.assert_array_equal(found[0], clean[0])
    np.testing.assert_array_equal(found[1], clean[1])
    assert (found[0][~mask] == 0).all()


@EVERY
def test_a_single_query_equals_a_sequence_of_one(name):
    query, value = normal(B, query_width(name)), normal(B, S, D_V, seed=1)
    layer = ATTENTIONS[name]()
    one = layer(query, value, query_mask=np.array([1, 0]), value_mask=lengths_mask([5, 2], S))
    many = layer(
        query[:, None],
        value,
        query_mask=np.array([[1], [0]]),
        value_mask=lengths_mask([5, 2], S),
    )
    assert tuple(one[0].shape) == (B, D_V)
    np.testing.assert_array_equal(array(one[0]), array(many[0])[:, 0])
    np.testing.assert_array_equal(array(one[1]), array(many[1])[..., 0, :])


def test_a_key_of_its_own_is_scored_while_the_value_is_summed():
    query, value, key = normal(B, T, 4), normal(B, S, 6, seed=1), normal(B, S, 11, seed=2)
    mask = lengths_mask([5, 2], S)
    for layer in (BahdanauAttention(7), LuongAttention("general")):
        context, weights = arrays(layer(query, value, key, value_mask=mask))
        (score,) = score_functions(layer)
        _, wanted = reference.attention(score, query, key, value_mask=mask)
        np.testing.assert_allclose(weights, wanted, atol=1e-5)
        np.testing.assert_allclose(context, wanted @ value, atol=1e-5)


def test_dropout_acts_on_the_context_and_never_on_the_weights():
    query, value = normal(B, T, 4), normal(B, S, 6, seed=1)
    for make in (
        lambda: BahdanauAttention(7, dropout=0.5, seed=3),
        lambda: LuongAttention(num_heads=2, dropout=0.5, seed=3),
    ):
        layer = make()
        still = arrays(layer(query, value))
        dropped = arrays(layer(query, value, training=True))
        np.testing.assert_array_equal(dropped[1], still[1])
        assert np.abs(dropped[0] - still[0]).max() > 1e-3
        np.testing.assert_array_equal(array(layer(query, value, training=False)[0]), still[0])


@EVERY
def test_each_size_may_be_unknown_and_change_from_call_to_call(name):
    width = query_width(name)
    query, value = keras.Input((None, width)), keras.Input((None, D_V))
    layer = ATTENTIONS[name]()
    context, weights = layer(query, value)
    assert context.shape == (None, None, D_V)
    assert weights.shape == (None, *([3] if "heads" in name else []), None, None)
    model = keras.Model([query, value], [context, weights])
    for b, t, s in [(1, 1, 9), (4, 3, 1), (4, 3, 9)]:
        q, v = normal(b, t, width), normal(b, s, D_V, seed=1)
        wanted = expected(layer, name, q, v)
        for found, want in zip(arrays(model([q, v])), wanted, strict=True):
            np.testing.assert_allclose(found, want, atol=1e-5)


SOURCE = np.array([[3, 7, 2, 9, 4], [5, 8, 0, 0, 0]])
TARGET = np.array([[1, 2, 3], [4, 5, 6]])


def masked_model(name, memory=None):
    """A functional model in which the memory's mask must find its own way."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = memory or layers.Embedding(20, D_V, mask_zero=True)
    queries = layers.Embedding(20, query_width(name))(target)
    return keras.Model([target, source], ATTENTIONS[name]()(queries, memory(source))[0])


@EVERY
def test_the_mask_of_the_memory_arrives_by_itself(name):
    padded = np.pad(SOURCE, ((0, 0), (0, 3)))
    model = masked_model(name)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    plain = array(model([TARGET, SOURCE]))
    for found in (
        model([TARGET, padded]),
        model.predict([TARGET, padded], verbose=0),
        clone([TARGET, padded]),
    ):
        np.testing.assert_allclose(array(found), plain, atol=1e-6)
    np.testing.assert_allclose(array(model([TARGET[1:], SOURCE[1:, :2]])), plain[1:], atol=1e-6)


def test_the_mask_passes_through_an_inner_model():
    flat = masked_model("bahdanau")
    ids = keras.Input((None,), dtype="int32")
    for inner in (
        keras.Sequential([layers.Embedding(20, D_V, mask_zero=True)]),
        keras.Model(ids, layers.Embedding(20, D_V, mask_zero=True)(ids)),
    ):
        nested = masked_model("bahdanau", inner)
        nested.set_weights(flat.get_weights())
        wanted = array(flat([TARGET, SOURCE]))
        np.testing.assert_allclose(array(nested([TARGET, SOURCE])), wanted, atol=1e-6)
        np.testing.assert_allclose(
            nested.predict([TARGET, SOURCE], verbose=0), wanted, atol=1e-6
        )
    losses = []
    for model in (flat, nested):
        model.compile("sgd", "mse")
        losses.append(float(model.train_on_batch([TARGET, SOURCE], np.ones((2, 3, D_V)))))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_after_an_op_that_drops_the_mask_it_is_passed_by_hand():
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = layers.Embedding(20, 6, mask_zero=True)(source) * 2.0
    queries = layers.Embedding(20, 4)(target)
    context, _ = BahdanauAttention(7)(queries, memory, value_mask=ops.not_equal(source, 0))
    model = keras.Model([target, source], context)
    padded = np.pad(SOURCE, ((0, 0), (0, 3)))
    np.testing.assert_allclose(
        array(model([TARGET, padded])), array(model([TARGET, SOURCE])), atol=1e-6
    )


def test_the_context_carries_the_query_s_mask_and_the_weights_carry_none():
    queries = layers.Embedding(20, 4, mask_zero=True)(np.array([[1, 2, 0], [3, 0, 0]]))
    spy, layer = MaskSpy(), BahdanauAttention(7)
    wanted = np.array([[1, 1, 0], [1, 0, 0]])
    for mask in (None, wanted.astype(bool)):
        # Attached to the query, then given by hand.
        query = queries if mask is None else array(queries).astype("float32")
        for one in layer(query, normal(B, S, D_V), query_mask=mask):
            spy(one)
    seen = spy.seen
    assert len(seen) == 4 and seen[1] is None and seen[3] is None
    np.testing.assert_array_equal(array(seen[0]), wanted)
    np.testing.assert_array_equal(array(seen[2]), wanted)


def test_calls_leave_nothing_behind():
    layer, query = BahdanauAttention(7), normal(B, T, 4)
    value, other = normal(B, S, 6, seed=1), normal(B, 9, 6, seed=2)
    first = arrays(layer(query, value, value_mask=lengths_mask([2, 3], S)))
    layer(query, other)
    again = arrays(layer(query, value, value_mask=lengths_mask([2, 3], S)))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
