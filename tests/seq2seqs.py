"""Small `Seq2Seq` models for the tests of generating and serving."""

import keras
import numpy as np
from keras import layers

import rows
from keras_attention import AttentionDecoder, BiEncoder, Seq2Seq

START, END = 1, 2
SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11
SOURCE = np.array([[3, 4, 5, 6, 12], [6, 7, 0, 0, 0], [9, 3, 3, 0, 0]], "int32")
LENGTH = 7

# Attention, cell, order: every one of each at least once.
DECODERS = [
    ("bahdanau", "gru", "before"),
    ("dot", "lstm", "after"),
    ("general", "stack", "feeding"),
    ("heads", "simple", "feeding"),
    ("concat", "gru", "before_attentional"),
]


class FirstStates(layers.Layer):
    """An encoder whose states fit any cell: BiEncoder's one state through Denses."""

    def __init__(self, encoder, sizes, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.sizes = encoder, sizes
        self.supports_masking = True
        self.denses = [layers.Dense(size, "tanh") for size in sizes]

    def build(self, shape):
        self.encoder.build(shape)
        for dense in self.denses:
            dense.build((None, 7))

    def call(self, inputs, mask=None, training=None):
        memory, state = self.encoder(inputs, mask=mask, training=training)
        return memory, [dense(state[0]) for dense in self.denses]

    def compute_mask(self, inputs, mask):
        return None

    def compute_output_shape(self, inputs_shape):
        memory, _ = self.encoder.compute_output_shape(inputs_shape)
        return memory, [(memory[0], size) for size in self.sizes]


def parts(attention="bahdanau", cell="gru", order="before", mask_zero=True, **kwargs):
    width = 7 if attention == "dot" else 6  # three heads divide 6
    encoder = BiEncoder(layers.GRU(width), merge_mode="sum", state_units=7)
    decoder = rows.decoder(attention, cell, order, **kwargs)
    sizes = decoder.state_size[:-1] if order == "feeding" else decoder.state_size
    return (
        layers.Embedding(SOURCE_VOCABULARY, 5, mask_zero=mask_zero),
        FirstStates(encoder, sizes),
        layers.Embedding(TARGET_VOCABULARY, 4, mask_zero=mask_zero),
        decoder,
        layers.Dense(TARGET_VOCABULARY),
    )


def seq2seq(*args, eager=True, end_bias=0.0, scale=3.0, **kwargs):
    """Untrained, with large random weights so that its outputs differ from row to row.

    `end_bias` makes the end token more probable, or less.
    """
    tokens = {name: kwargs.pop(name) for name in ("pad_token",) if name in kwargs}
    model = Seq2Seq(*parts(*args, **kwargs), start_token=START, end_token=END, **tokens)
    rng = np.random.default_rng(7)
    for weight in model.trainable_weights:
        weight.assign(scale * rng.normal(size=weight.shape) / weight.shape[0] ** 0.5)
    bias = np.zeros(TARGET_VOCABULARY)
    bias[END] = end_bias
    model.output_layer.bias.assign(bias)
    model.run_eagerly = eager
    return model


def library_seq2seq(attention=None, **kwargs):
    """Of the package's layers alone, so that it can be saved; `attention` may be another."""
    attention = attention or rows.ATTENTIONS["bahdanau"]()
    return Seq2Seq(
        layers.Embedding(SOURCE_VOCABULARY, 5, mask_zero=True),
        BiEncoder(layers.GRU(6), state_units=7),
        layers.Embedding(TARGET_VOCABULARY, 4, mask_zero=True),
        AttentionDecoder(layers.GRUCell(7), attention),
        layers.Dense(TARGET_VOCABULARY),
        start_token=START,
        end_token=END,
        **kwargs,
    )


def generate(model, source=SOURCE, search=None, max_length=LENGTH, **kwargs):
    return model.generate(source, search, max_length, verbose=0, **kwargs)


def assert_same(one, other, atol=1e-5):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_allclose(one.scores, other.scores, atol=atol)
    np.testing.assert_allclose(one.weights, other.weights, atol=atol)


def teacher_forced(model, source, tokens):
    """Log-probabilities (B, T, V) and weights of the whole model on given tokens.

    What generation must agree with: the decoder's one call, not its step.
    """
    shifted = np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    memory, state, mask = model.encode(keras.ops.convert_to_tensor(source))
    embedded = model.target_embedding(keras.ops.convert_to_tensor(shifted))
    outputs, weights, _ = model.decoder(embedded, memory, state, memory_mask=mask)
    logits = rows.array(model.output_layer(outputs))
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), rows.array(weights)
