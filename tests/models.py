"""Whole models for the promises that only a model can keep: saving, compiling, training."""

import keras
import numpy as np
from keras import layers, ops

from keras_attention import AttentionDecoder, BahdanauAttention, BiEncoder, LuongAttention
from rows import ATTENTIONS, CELLS, ORDERS

VOCABULARY = 20

# Every attention, every cell, every order at least once: not the whole product.
DECODERS = [
    ("bahdanau", "simple", "before"),
    ("dot", "gru", "after"),
    ("general", "lstm", "feeding"),
    ("concat", "stack", "before_attentional"),
    ("scaled", "stack", "after"),
    ("heads", "gru", "feeding"),
    ("concat_heads", "lstm", "before"),
]


def ids(*shape, seed=0):
    """Token ids, of which 0 is padding and does not occur."""
    return np.random.default_rng(seed).integers(1, VOCABULARY, shape).astype("int32")


def batch(rows=4, source_steps=5, target_steps=3, padded=True):
    """[source, target], the rows of different lengths, and the target to learn."""
    source, target = ids(rows, source_steps), ids(rows, target_steps, seed=1)
    if padded:
        source[1::2, max(1, source_steps - 2) :] = 0
        target[::2, max(1, target_steps - 1) :] = 0
    return [source, target], ids(rows, target_steps, seed=2)


def pad(tokens, steps):
    return np.pad(tokens, [(0, 0), (0, steps)])


def token_inputs():
    return [keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")]


def embeddings():
    return [layers.Embedding(VOCABULARY, width, mask_zero=True) for width in (5, 4)]


def first_states(decoder, states):
    """What the encoder returned, in the decoder's sizes: all of it through Denses."""
    states = layers.Concatenate()(states) if len(states) > 1 else states[0]
    return [layers.Dense(size)(states) for size in decoder.state_size]


def translator(attention="bahdanau", cell="gru", order="before", encoder="GRU", **named):
    """Functional, with masks from the embeddings; `named` renames the two inputs."""
    decoder = AttentionDecoder(CELLS[cell](), ATTENTIONS[attention](), **ORDERS[order])
    inputs = token_inputs()
    source, target = (embed(x) for embed, x in zip(embeddings(), inputs, strict=True))
    # Three heads divide 6, and "dot" finds in the decoder's 7 units its query's width.
    width = 7 if attention == "dot" else 6
    recurrent = getattr(layers, encoder)(width)
    memory, states = BiEncoder(recurrent, merge_mode="sum")(source)
    state = first_states(decoder, states)
    outputs, _, _ = decoder(target, memory, initial_state=state)
    logits = layers.Dense(VOCABULARY)(outputs)
    return keras.Model(named.get("inputs", lambda found: found)(inputs), logits)


def masked_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def odd_encoder():
    """Every argument off its default, dropout in every place."""
    dropped = {"dropout": 0.3, "recurrent_dropout": 0.3, "kernel_regularizer": "l2"}
    stack = [layers.LSTM(5, seed=1, **dropped), layers.LSTM(6, seed=2, **dropped)]
    return BiEncoder(stack, merge_mode="sum", state_units=11, bridge="relu", name="reader")


def odd_decoder(attend="after"):
    """The same of a decoder on two stacked cells; "before" cannot feed its input."""
    dropped = {"dropout": 0.3, "recurrent_dropout": 0.3, "bias_regularizer": "l1"}
    settings = {
        "kernel_initializer": "he_normal",
        "kernel_regularizer": keras.regularizers.L2(0.1),
        "dropout": 0.3,
        "seed": 5,
    }
    if attend == "after":
        attention = LuongAttention(
            "concat", units=9, num_heads=3, use_scale=True, name="looker", **settings
        )
    else:
        attention = BahdanauAttention(9, name="looker", **settings)
    return AttentionDecoder(
        [layers.LSTMCell(5, seed=3, **dropped), layers.GRUCell(7, seed=4, **dropped)],
        attention,
        attend=attend,
        attentional_units=13,
        input_feeding=attend == "after",
        name="writer",
    )


def odd_functional():
    source, target = token_inputs()
    embed_source, embed_target = embeddings()
    memory, states = odd_encoder()(embed_source(source))
    decoder = odd_decoder()
    state = first_states(decoder, states)
    outputs, _, _ = decoder(embed_target(target), memory, initial_state=state)
    return keras.Model([source, target], layers.Dense(VOCABULARY)(outputs))


def odd_nested():
    """The encoder in a model of its own, on an embedding inside a Sequential."""
    source, target = token_inputs()
    embed_source, embed_target = embeddings()
    inner = keras.Input((None,), dtype="int32")
    embedded = keras.Sequential([embed_source, layers.Dense(5)])(inner)
    memory, states = odd_encoder()(embedded)
    reader = keras.Model(inner, [memory, *states])
    decoder = odd_decoder("before")
    memory, *states = reader(source)
    state = first_states(decoder, states)
    mask = ops.not_equal(source, 0)
    outputs, _, _ = decoder(embed_target(target), memory, initial_state=state, memory_mask=mask)
    return keras.Model([source, target], layers.Dense(VOCABULARY)(outputs))


@keras.saving.register_keras_serializable(package="theirs")
class Translator(keras.Model):
    """A user's subclass, which names its parts and saves no more than Keras asks for."""

    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.embed_source = keras.layers.Embedding(20, 5, mask_zero=True)
        self.embed_target = keras.layers.Embedding(20, 4, mask_zero=True)
        self.bridges = [keras.layers.Dense(size) for size in decoder.state_size]
        self.head = keras.layers.Dense(20)

    def call(self, inputs, training=None):
        source, target = inputs
        memory, states = self.encoder(self.embed_source(source), training=training)
        states = keras.ops.concatenate(states, axis=-1)
        state = [dense(states) for dense in self.bridges]
        outputs, _, _ = self.decoder(
            self.embed_target(target), memory, initial_state=state, training=training
        )
        return self.head(outputs)

    def get_config(self):
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        saved = {k: keras.saving.serialize_keras_object(v) for k, v in parts.items()}
        return {**super().get_config(), **saved}

    @classmethod
    def from_config(cls, config):
        parts = {
            name: keras.saving.deserialize_keras_object(config.pop(name))
            for name in ("encoder", "decoder")
        }
        return cls(**parts, **config)


def odd_subclassed():
    model = Translator(odd_encoder(), odd_decoder())
    model(batch()[0])
    return model


ODD = {
    "functional": odd_functional,
    "nested": odd_nested,
    "subclassed": odd_subclassed,
}
