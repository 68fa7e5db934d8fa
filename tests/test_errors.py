"""Every wrong input gives one error that names the tensor, both shapes, and the fix."""

import functools

import keras
import numpy as np
import pytest
from keras import layers

from keras_attention import (
    AttentionDecoder,
    BahdanauAttention,
    BiEncoder,
    LuongAttention,
    MaskedSoftmax,
)
from rows import ATTENTIONS, D_V, ORDERS, B, S, T, U, decoder, lengths_mask, normal, query_width

pytestmark = pytest.mark.usefixtures("op_by_op")

EVERY = pytest.mark.parametrize("name", ATTENTIONS)


def message(call, *parts, error=ValueError):
    """Runs `call`, which must fail with every one of `parts` in its message."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    for part in (*parts, "Fix:"):
        assert part in text, f"{part!r} is not in: {text}"


@EVERY
@pytest.mark.parametrize("built", [False, True])
def test_an_attention_refuses_what_would_broadcast(name, built):
    width = query_width(name)
    query, value = normal(B, T, width), normal(B, S, D_V, seed=1)
    layer = ATTENTIONS[name]()
    if built:
        layer(query, value)
    message(
        lambda: layer(query, value[:, 0]), "`value`", "(B, S, D_v)", "return_sequences=True?"
    )
    message(lambda: layer(query, value[:1]), "`value`", f"B={B}", f"(1, {S}, {D_V})")
    message(lambda: layer(query[:1], value), "`value`", "B=1", f"({B}, {S}, {D_V})")
    message(lambda: layer(query[None], value), "`query`", "(B, T, D_q)")
    message(
        lambda: layer(query, value, value[:, 1:]), "`key`", f"S={S}", f"({B}, {S - 1}, {D_V})"
    )
    if built:
        message(lambda: layer(query, value[..., :1]), "`value`", f"D_v={D_V}", f"({B}, {S}, 1)")
        message(lambda: layer(query[..., :1], value), "`query`", f"D_q={width}")


@EVERY
def test_an_attention_refuses_a_mask_of_another_length(name):
    query, value = normal(B, T, query_width(name)), normal(B, S, D_V, seed=1)
    layer = ATTENTIONS[name]()
    short = np.ones((B, S - 1), bool)
    both = (f"({B}, {S - 1})", f"({B}, {S})")
    message(lambda: layer(query, value, value_mask=short), "`value_mask`", *both)
    message(lambda: layer(query, value, value_mask=short[:1]), "`value_mask`")
    message(
        lambda: layer(query, value, value_mask=np.ones((B, 1, S))), "`value_mask`", "(B, T, S)"
    )
    message(lambda: layer(query, value, query_mask=np.ones((B, T + 1))), "`query_mask`")
    message(
        lambda: layer(query[:, 0], value, query_mask=np.ones((B, 1))), "`query_mask`", "(B,)"
    )


def test_dot_of_other_widths_points_to_general():
    inputs, memory = normal(B, T, 4), normal(B, S, 6)
    message(lambda: LuongAttention("dot")(inputs, memory), "general", "D_q=4", "D_k=6")
    in_a_decoder = ("general", f"D_q={U}", "D_k=6", "cell's state", "memory")
    message(lambda: decoder("dot", order="after")(inputs, memory), *in_a_decoder)
    for layer in (BahdanauAttention(7), LuongAttention(), LuongAttention("concat", units=7)):
        assert tuple(layer(normal(B, T, 4), normal(B, S, 6))[0].shape) == (B, T, 6)


@pytest.mark.parametrize(
    "make, parts",
    [
        (lambda: BahdanauAttention(0), ["units", "0"]),
        (lambda: BahdanauAttention(2.5), ["units", "2.5"]),
        (lambda: BahdanauAttention(True), ["units"]),
        (lambda: BahdanauAttention(5, dropout=1.0), ["dropout", "1.0"]),
        (lambda: LuongAttention("foo"), ["score", "'foo'", "'dot', 'general', 'concat'"]),
        (lambda: LuongAttention("concat"), ["units", "None"]),
        (lambda: LuongAttention("concat", units=7, num_heads=2), ["units=7", "units=8"]),
        (lambda: LuongAttention("general", units=5), ["units", "concat"]),
        (lambda: LuongAttention(num_heads=0), ["num_heads", "0"]),
        (lambda: BiEncoder(layers.GRU(3), merge_mode="avg"), ["merge_mode", "'avg'", "'ave'"]),
        (lambda: BiEncoder(layers.GRU(3), merge_mode=None), ["merge_mode"]),
        (lambda: BiEncoder(layers.GRU(3), state_units=0), ["state_units"]),
        (lambda: BiEncoder(layers.GRUCell(3)), ["layer", "RNN(cell)"]),
        (lambda: BiEncoder(layers.GRU(3, stateful=True)), ["stateful"]),
        (lambda: BiEncoder([]), ["layer", "empty"]),
        (lambda: AttentionDecoder(layers.GRU(3), LuongAttention()), ["cell", "GRUCell"]),
        (lambda: AttentionDecoder(7, LuongAttention()), ["cell", "7"]),
        (lambda: AttentionDecoder([], LuongAttention()), ["cell", "one or more", "[]"]),
        (lambda: AttentionDecoder(layers.GRUCell(3), layers.Attention()), ["attention"]),
        (
            lambda: AttentionDecoder(layers.GRUCell(3), LuongAttention(), attend="during"),
            ["'during'"],
        ),
        (lambda: decoder("bahdanau", input_feeding=True), ["input_feeding", "attend='after'"]),
        (lambda: decoder(attentional_units=0), ["attentional_units"]),
    ],
)
def test_a_bad_argument_is_refused_at_construction(make, parts):
    message(make, *parts)


def test_heads_that_do_not_divide_are_refused_at_build():
    for name, layer in [
        ("value", LuongAttention("general", num_heads=4)),
    ]:
        message(lambda layer=layer: layer(normal(B, T, 4), normal(B, S, 6)), name, "num_heads")


@pytest.mark.parametrize("order", ORDERS)
def test_a_decoder_names_the_tensor_that_does_not_fit(order):
    layer = decoder(order=order)
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    message(lambda: layer(inputs, memory[:, 0]), "`memory`", "return_sequences=True?")
    message(lambda: layer(inputs[:, 0], memory), "`inputs`", "(B, T, D_x)")
    message(lambda: layer(inputs, memory[:1]), "`memory`", f"B={B}", f"(1, {S}, {D_V})")
    short = lengths_mask([1, 1], S - 1)
    message(
        lambda: layer(inputs, memory, memory_mask=short), "`memory_mask`", f"({B}, {S - 1})"
    )
    message(lambda: layer(inputs, memory, inputs_mask=short), "`inputs_mask`", f"({B}, {T})")
    layer(inputs, memory)
    message(lambda: layer(inputs[..., :1], memory), "`inputs`", "D_x=4")
    message(lambda: layer(inputs, memory[..., :1]), "`memory`", f"D_v={D_V}")


def test_an_initial_state_of_another_count_width_or_batch_is_refused():
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    state = normal(B, U, seed=2)

    def start(layer, value):
        return lambda: layer(inputs, memory, initial_state=value)

    lstm, gru = decoder(cell="lstm"), decoder(cell="gru")
    message(start(lstm, state), "initial_state", "2 tensors", "received 1", f"({B}, {U})")
    message(start(lstm, [state] * 3), "initial_state", "2 tensors", "received 3")
    message(start(lstm, [state, state[:1]]), "initial_state[1]", f"B={B}", f"(1, {U})")
    message(start(gru, state[:, :3]), "initial_state[0]", f"U={U}", f"({B}, 3)")
    message(start(decoder(cell="stack"), [state]), "3 tensors", "state * 2")
    feeding = decoder(order="feeding")
    message(start(feeding, [state] * 3), "1 or 2 tensors", "received 3")
    for given in (state, [state], (state,)):
        gru(inputs, memory, initial_state=given)


def test_a_step_names_the_tensor_that_does_not_fit():
    layer, inputs, memory = decoder(cell="lstm"), normal(B, T, 4), normal(B, S, D_V, seed=1)
    message(lambda: layer.step(inputs[:, 0], [], None), "`step`", "build(")
    layer(inputs, memory)
    source, state = layer.prepare(memory), layer.get_initial_state(B)
    short, one_row = [state[0], state[1][:, :3]], [one[:1] for one in state]
    for x, given, parts in [
        (inputs, state, ["`inputs`", "D_x)", f"({B}, {T}, 4)"]),
        (inputs[:, 0, :3], state, ["`inputs`", "D_x=4", f"({B}, 3)"]),
        (np.ones((B, 4), "int32"), state, ["`inputs`", "int32", "embed"]),
        (inputs[:, 0], state[:1], ["`state`", "2 tensors", "received 1"]),
        (inputs[:, 0], short, ["`state[1]`", f"U={U}", f"({B}, 3)"]),
        (inputs[:1, 0], one_row, ["`source`", "(1, 4)", f"({B}, {S}, {D_V})"]),
    ]:
        message(functools.partial(layer.step, x, given, source), *parts)


def test_integer_ids_are_refused_and_the_remedy_is_to_embed():
    inputs, memory = normal(B, T, 4), normal(B, S, D_V, seed=1)
    for ids in (np.ones((B, T), "int32"), np.ones((B, T, 4), "int32")):
        for call in (
            lambda ids=ids: BahdanauAttention(3)(ids, memory),
            lambda ids=ids: BahdanauAttention(3)(inputs, ids),
            lambda ids=ids: BahdanauAttention(3)(inputs, memory[:, :T], ids),
            lambda ids=ids: BiEncoder(layers.GRU(3))(ids),
            lambda ids=ids: decoder()(ids, memory),
            lambda ids=ids: decoder()(inputs, ids),
        ):
            message(call, "embed integer ids", str(ids.shape))


@pytest.mark.parametrize(
    "shapes, name, width",
    [
        ([(B, T, 3), (B, S, D_V)], "query", "D_q=3"),
        ([(B, T, U), (B, S, 3)], "value", "D_v=3"),
        ([(B, T, U), (B, S, D_V), (B, S, 3)], "key", "D_k=3"),
    ],
)
def test_a_decoder_refuses_an_attention_built_for_other_widths(shapes, name, width):
    attention = BahdanauAttention(5)
    attention(*[normal(*shape) for shape in shapes])
    layer = AttentionDecoder(layers.GRUCell(U), attention)
    came = f", {U})" if name == "query" else f"({B}, {S}, {D_V})"
    parts = (f"`{name}`", width, came, "cell's state", "memory")
    message(lambda: layer.build((B, T, 4), (B, S, D_V)), *parts)


def test_an_encoder_names_the_tensor_that_does_not_fit():
    encoder = BiEncoder(layers.GRU(U))
    message(lambda: encoder(normal(B, S)), "`inputs`", "(B, S, D)", "embed")
    encoder(normal(B, S, 4))
    message(lambda: encoder(normal(B, S, 3)), "`inputs`", "D=4", f"({B}, {S}, 3)")
    mask = np.ones((B, S + 1))
    message(lambda: encoder(normal(B, S, 4), mask=mask), "`mask`", f"({B}, {S + 1})")


@pytest.mark.parametrize("built", [False, True])
def test_several_tensors_for_one_are_to_be_unpacked(built):
    query, value = normal(B, T, U), normal(B, S, D_V, seed=1)
    attention, whole, encoder = LuongAttention(), decoder(), BiEncoder(layers.GRU(U))
    if built:
        attention(query, value), whole(query, value), encoder(value)
    remedy = ("one tensor", "list or tuple of 2", "unpack")
    both = (value, [normal(B, U)])
    message(lambda: attention(query, both), "`value`", *remedy)
    message(lambda: whole(query, both), "`memory`", *remedy)
    message(lambda: encoder(both), "`inputs`", *remedy)


def test_no_steps_at_all_are_refused_alike_on_every_backend():
    layer, inputs, memory = decoder(), normal(B, T, 4), normal(B, S, D_V, seed=1)
    remedy = ("one step or more", "pad it to one step")
    message(lambda: layer(inputs[:, :0], memory), "`inputs`", f"({B}, 0, 4)", *remedy)
    message(lambda: layer(inputs, memory[:, :0]), "`memory`", f"({B}, 0, {D_V})", *remedy)
    encoder = BiEncoder(layers.GRU(U))
    message(lambda: encoder(memory[:, :0]), "`inputs`", f"({B}, 0, {D_V})", *remedy)


def test_a_softmax_mask_must_broadcast_without_widening_the_scores():
    scores = normal(2, 3, 5)
    for shape in [(2, 3, 4), (2, 2, 5), (7, 2, 3, 5), (3, 3, 5)]:
        message(
            lambda shape=shape: MaskedSoftmax()(scores, np.ones(shape)), "`mask`", str(shape)
        )


def test_the_errors_come_while_a_functional_model_is_built():
    inputs, vector = keras.Input((None, 4)), keras.Input((D_V,))
    message(lambda: decoder()(inputs, vector), "`memory`", "return_sequences=True?")
    message(lambda: BahdanauAttention(3)(inputs, vector), "`value`", "return_sequences=True?")
    layer = decoder()
    layer(inputs, keras.Input((None, D_V)))
    message(lambda: layer(inputs, keras.Input((None, 5))), "`memory`", f"D_v={D_V}")


def test_a_wrong_initial_state_is_refused_while_a_functional_model_is_built():
    inputs, memory = keras.Input((None, 4)), keras.Input((None, D_V))
    narrow, state, built = keras.Input((3,)), keras.Input((U,)), decoder()
    built(inputs, memory)
    for layer, given, parts in [
        (decoder(cell="lstm"), state, ["`initial_state`", "2 tensors", "received 1"]),
        (decoder(order="feeding"), [state] * 3, ["`initial_state`", "1 or 2", "received 3"]),
        (decoder(), [narrow], ["`initial_state[0]`", f"U={U}", "(None, 3)"]),
        (built, narrow, ["`initial_state[0]`", f"U={U}", "(None, 3)"]),
    ]:
        call = functools.partial(layer, inputs, memory, initial_state=given)
        message(call, *parts)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.RaggedTensor")
def test_a_ragged_tensor_is_refused_with_the_remedy():
    import tensorflow as tf

    ragged = tf.RaggedTensor.from_row_lengths(normal(7, 6), [5, 2])
    dense = normal(2, 5, 6)
    for call in (
        lambda: BahdanauAttention(3)(dense, ragged),
        lambda: BahdanauAttention(3)(ragged, dense),
        lambda: decoder()(dense, ragged),
        lambda: decoder()(ragged, dense),
        lambda: BiEncoder(layers.GRU(3))(ragged),
    ):
        message(call, ".to_tensor()", "mask", error=TypeError)
