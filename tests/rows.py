"""The rows that properties are checked over: every attention, cell and decoder.

Sizes are pairwise different (equal ones hide swapped axes); EQUAL is the exception, run
once. A new attention is a new row here.
"""

import keras
import numpy as np
import pytest

import reference
from keras_attention import AttentionDecoder, BahdanauAttention, LuongAttention

B, T, S, D_Q, D_V, U = 2, 3, 5, 4, 6, 7

ATTENTIONS = {
    "bahdanau": lambda **kw: BahdanauAttention(U, **kw),
    "dot": lambda **kw: LuongAttention("dot", **kw),
    "general": lambda **kw: LuongAttention("general", **kw),
    "concat": lambda **kw: LuongAttention("concat", units=U, **kw),
    "scaled": lambda **kw: LuongAttention("general", use_scale=True, **kw),
    "heads": lambda **kw: LuongAttention("general", num_heads=3, **kw),
    "concat_heads": lambda **kw: LuongAttention("concat", units=9, num_heads=3, **kw),
}

# Keras's type table narrows float64 in its own ops (matmul, tanh) on JAX and PyTorch.
WIDEST = "float64" if keras.backend.backend() == "tensorflow" else "float32"

needs_float64 = pytest.mark.skipif(
    WIDEST != "float64", reason="Keras's own ops narrow float64 to float32 on this backend"
)

CELLS = {
    "simple": lambda **kw: keras.layers.SimpleRNNCell(U, bias_initializer="ones", **kw),
    "gru": lambda **kw: keras.layers.GRUCell(U, bias_initializer="ones", **kw),
    "lstm": lambda **kw: keras.layers.LSTMCell(U, bias_initializer="ones", **kw),
    "stack": lambda **kw: [keras.layers.LSTMCell(U + 4, **kw), keras.layers.GRUCell(U, **kw)],
}

ORDERS = {
    "before": {"attend": "before"},
    "before_attentional": {"attend": "before", "attentional_units": 11},
    "after": {"attend": "after"},
    "feeding": {"attend": "after", "input_feeding": True, "attentional_units": 11},
}

STEPS = {
    "simple": reference.simple_step,
    "gru": reference.gru_step,
    "lstm": reference.lstm_step,
}


def query_width(attention):
    """D_q: "dot" is the one attention that needs D_q == D_v."""
    return D_V if attention == "dot" else D_Q


def decoder(attention="bahdanau", cell="gru", order="before", **kwargs):
    """A decoder of the table. For "dot" the memory must be U wide; `memory_width` says so."""
    return AttentionDecoder(CELLS[cell](), ATTENTIONS[attention](), **ORDERS[order], **kwargs)


def memory_width(attention):
    return U if attention == "dot" else D_V


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def lengths_mask(lengths, steps):
    return np.arange(steps)[None] < np.array(lengths)[:, None]


def array(x):
    """NumPy float64 of a tensor of any backend and dtype (bfloat16 too)."""
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float64"))


def arrays(results):
    return [array(x) for x in keras.tree.flatten(results)]


class MaskSpy(keras.layers.Layer):
    """The identity; `seen` lists the masks that reached it, or None, call by call."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.seen = []

    def call(self, inputs, mask=None):
        self.seen.append(mask)
        return inputs


def score_functions(layer, heads=1):
    """The reference score of each head of a built attention layer, from its weights.

    A head scores with its group of the projected query's columns and the key's.
    """
    groups = []
    for head in range(heads):
        if getattr(layer, "score", "") == "dot":
            groups.append(lambda q, h, g=head: _dot(q, h, g, heads))
        elif getattr(layer, "score", "") == "general":
            matrix = array(layer.query_projection.kernel)
            scale = array(layer.scale) if layer.use_scale else 1.0
            groups.append(
                lambda q, h, g=head, m=matrix, s=scale: s * _general(q, h, m, g, heads)
            )
        else:
            wq, wk = array(layer.query_projection.kernel), array(layer.key_projection.kernel)
            vector = array(layer.score_vector)
            taken = _columns(vector.shape[0], head, heads)
            groups.append(
                lambda q, h, a=wq, b=wk, v=vector, c=taken: reference.additive_score(
                    q, h, a[:, c], b[:, c], v[c]
                )
            )
    return groups


def _columns(width, head, heads):
    size = width // heads
    return slice(head * size, (head + 1) * size)


def _dot(query, key, head, heads):
    taken = _columns(len(key), head, heads)
    return reference.dot_score(query[taken], key[taken])


def _general(query, key, matrix, head, heads):
    taken = _columns(len(key), head, heads)
    return reference.general_score(query, key[taken], matrix[:, taken])
