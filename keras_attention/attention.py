"""The attention of the two papers: Bahdanau et al. 2014 and Luong et al. 2015.

Each is a formula for the scores; `BaseAttention` does the rest.

Sizes: B batch, T target steps (queries), S source steps, D_q query width, D_k key
width, D_v value width, U units, H heads.
"""

import keras
from keras import ops

from keras_attention import checks, functions
from keras_attention.base import BaseAttention


@keras.saving.register_keras_serializable(package="keras_attention")
class BahdanauAttention(BaseAttention):
    """Additive attention (Bahdanau, Cho and Bengio 2014).

        e_{t,i} = v_a . tanh(W_a q_t + U_a h_i)

    In the paper the query is the decoder's state *before* the step, q_t = s_{t-1};
    `AttentionDecoder` does that by default with this layer. Query and value may have any
    width. It differs from `keras.layers.AdditiveAttention`, which has no W_a and U_a.

    Weights, all without bias: `query_projection` (W_a, a `Dense` of U units),
    `key_projection` (U_a, the same) and `score_vector` (v_a, of shape (U,)).

    Args:
        units: Integer U, the width in which query and key meet.
        kernel_initializer: For all three weights.
        kernel_regularizer: For all three weights.
        dropout, seed, **kwargs: As in `BaseAttention`.

    Call arguments, as in `BaseAttention`: query (B, T, D_q) or (B, D_q), value (B, S, D_v),
    key (B, S, D_k) = value, query_mask (B, T), value_mask (B, S) or (B, T, S).

    Returns:
        context (B, T, D_v) or (B, D_v), and weights (B, T, S) or (B, S): exactly
        0 at masked steps, all 0 for a source with nothing to attend to.

    Raises:
        ValueError: A rank, batch, width, mask, dtype or argument that does not fit.
        TypeError: A ragged tensor.

    Example:

    >>> query, value = keras.random.normal((2, 3, 4)), keras.random.normal((2, 5, 6))
    >>> context, weights = BahdanauAttention(7)(query, value)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 6), (2, 3, 5))

    Reference:
        Neural Machine Translation by Jointly Learning to Align and Translate,
        https://arxiv.org/abs/1409.0473, section 3.1 (context: equation 5, weights: 6) and
        appendix A.1.2 (the scores).
    """

    def __init__(
        self,
        units,
        *,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        units = checks.positive_int("BahdanauAttention", "units", units)
        super().__init__(**kwargs)
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        key_shape = value_shape if key_shape is None else key_shape
        self.query_projection = _projection(self, "query_projection", query_shape)
        self.key_projection = _projection(self, "key_projection", key_shape)
        self.score_vector = _score_vector(self)

    def project_keys(self, key):
        return self.key_projection(key)

    def compute_scores(self, query, keys):
        query = self.query_projection(query)
        return functions.additive_scores(query, keys, self.score_vector)

    def get_config(self):
        return {**super().get_config(), "units": self.units, **_kernel_config(self)}


@keras.saving.register_keras_serializable(package="keras_attention")
class LuongAttention(BaseAttention):
    """Multiplicative attention (Luong, Pham and Manning 2015), in its three forms.

        dot      e_{t,i} = q_t . h_i                  needs D_q == D_k
        general  e_{t,i} = q_t W h_i
        concat   e_{t,i} = v . tanh(W [q_t; h_i])

    In the paper the query is the decoder's state *after* the step, q_t = s_t;
    `AttentionDecoder` does that by default with this layer.

    With H heads, the D_v columns of the value and those of the projected query (for
    "dot" the query itself; for "concat" the U columns of W [q; h]) are cut into H groups;
    each head attends with its groups and the contexts are concatenated. One head is the
    plain formula.

    Weights, all without bias: "general" has `query_projection` (W, of shape
    (D_q, D_k)); "concat" has `query_projection` and `key_projection` (the two halves of
    W, of U units) and `score_vector` (v, of shape (U,)); `use_scale` adds `scale`.

    Args:
        score: "dot", "general" or "concat".
        units: Integer U, the width of "concat"; only there, and needed there.
        num_heads: Integer H, which divides D_v and the width that is scored.
        use_scale: Boolean, whether the scores are multiplied by one learned scalar,
            which starts at 1.
        kernel_initializer: For the projections and `score_vector`.
        kernel_regularizer: For the same.
        dropout, seed, **kwargs: As in `BaseAttention`.

    Call arguments, as in `BaseAttention`: query (B, T, D_q) or (B, D_q), value (B, S, D_v),
    key (B, S, D_k) = value, query_mask (B, T), value_mask (B, S) or (B, T, S).

    Returns:
        context (B, T, D_v) or (B, D_v), and weights (B, T, S) or (B, S), with H > 1
        (B, H, T, S) or (B, H, S): exactly 0 at masked steps, all 0 for a source with
        nothing to attend to.

    Raises:
        ValueError: As there; also heads that do not divide, and "dot" with D_q != D_k.
        TypeError: A ragged tensor.

    Example:

    >>> query, value = keras.random.normal((2, 3, 4)), keras.random.normal((2, 5, 6))
    >>> context, weights = LuongAttention("general", num_heads=2)(query, value)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 6), (2, 2, 3, 5))

    Reference:
        Effective Approaches to Attention-based Neural Machine Translation,
        https://arxiv.org/abs/1508.04025, section 3.1: the weights are equation 7, the three
        scores follow it without a number.
    """

    def __init__(
        self,
        score="general",
        *,
        units=None,
        num_heads=1,
        use_scale=False,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        **kwargs,
    ):
        checks.check_choice("LuongAttention", "score", score, ("dot", "general", "concat"))
        num_heads = checks.positive_int("LuongAttention", "num_heads", num_heads)
        if score == "concat":
            units = checks.positive_int("LuongAttention (score 'concat')", "units", units)
            if units % num_heads:
                raise ValueError(
                    f"LuongAttention: `units` should be a multiple of num_heads={num_heads}, "
                    f"but received units={units}. Fix: pass units="
                    f"{num_heads * (units // num_heads + 1)}."
                )
        elif units is not None:
            raise ValueError(
                f"LuongAttention: `units` is the width of 'concat', but received "
                f"units={units!r} with score={score!r}. Fix: leave it out."
            )
        super().__init__(**kwargs)
        self.score = score
        self.units = units
        self.num_heads = num_heads
        self.use_scale = use_scale
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        key_shape = value_shape if key_shape is None else key_shape
        self._check_heads("D_v", "value", value_shape[-1])
        if self.score != "concat":
            self._check_heads("D_k", "key", key_shape[-1])
        if self.score == "dot" and query_shape[-1] != key_shape[-1]:
            checks.fail(
                self,
                "query",
                f"as wide as the key for score 'dot': D_q=D_k={key_shape[-1]}",
                f"shape {checks.as_shape(query_shape)}, D_q={query_shape[-1]}",
                "use score='general', which learns a matrix between them; or make both "
                f"equally wide, with Dense({query_shape[-1]}) on the memory, or with "
                "merge_mode='sum' of a BiEncoder. " + checks.IN_A_DECODER,
            )
        if self.score == "general":
            width = key_shape[-1]
            self.query_projection = _projection(self, "query_projection", query_shape, width)
        if self.score == "concat":
            self.query_projection = _projection(self, "query_projection", query_shape)
            self.key_projection = _projection(self, "key_projection", key_shape)
            self.score_vector = _score_vector(self)
        if self.use_scale:
            self.scale = self.add_weight(
                name="scale", shape=(), initializer="ones", autocast=False
            )

    def project_keys(self, key):
        # The cast of the scores' float32 sum, once per source and not per step.
        key = self.key_projection(key) if self.score == "concat" else functions.wide(key)
        return self._split(key)

    def compute_scores(self, query, keys):
        query = query if self.score == "dot" else self.query_projection(query)
        query = self._split(query)
        if self.score == "concat":
            scores = functions.additive_scores(query, keys, self._vector_per_head())
        else:
            scores = functions.dot_scores(query, keys)
        return scores * functions.wide(self.scale) if self.use_scale else scores

    def get_config(self):
        config = {
            "score": self.score,
            "units": self.units,
            "num_heads": self.num_heads,
            "use_scale": self.use_scale,
        }
        return {**super().get_config(), **config, **_kernel_config(self)}

    def _split(self, x):
        return x if self.num_heads == 1 else functions.split_heads(x, self.num_heads)

    def _vector_per_head(self):
        """v (U,), or (H, 1, 1, U/H) to meet the energies (B, H, T, S, U/H)."""
        if self.num_heads == 1:
            return self.score_vector
        width = self.units // self.num_heads
        return ops.reshape(self.score_vector, (self.num_heads, 1, 1, width))

    def _check_heads(self, symbol, tensor, width):
        if width % self.num_heads:
            checks.fail(
                self,
                tensor,
                f"of a width that num_heads={self.num_heads} divides",
                f"{symbol}={width}",
                f"choose a num_heads that divides {width}, or project to a multiple of "
                f"{self.num_heads}.",
            )


def _projection(attention, name, input_shape, units=None):
    dense = keras.layers.Dense(
        attention.units if units is None else units,
        use_bias=False,
        kernel_initializer=_fresh(attention.kernel_initializer),
        kernel_regularizer=attention.kernel_regularizer,
        dtype=attention.dtype_policy,
        name=name,
    )
    dense.build(input_shape)
    return dense


def _score_vector(attention):
    return attention.add_weight(
        name="score_vector",
        shape=(attention.units,),
        initializer=_fresh(attention.kernel_initializer),
        regularizer=attention.kernel_regularizer,
        autocast=False,  # the scores are summed in float32
    )


def _fresh(initializer):
    """A copy that draws anew: one instance gives every weight the same numbers."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer


def _kernel_config(attention):
    return {
        "kernel_initializer": keras.initializers.serialize(attention.kernel_initializer),
        "kernel_regularizer": keras.regularizers.serialize(attention.kernel_regularizer),
    }
