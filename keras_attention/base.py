"""The template of every attention: it owns mask, softmax, sum and shapes.

A new kind of attention is a subclass of `BaseAttention` with `compute_scores` and, where
something depends on the source alone, a `project_keys`.

Sizes: B batch, T target steps (queries), S source steps, D_q query width, D_k key
width, D_v value width, U units, H heads.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_attention import checks, functions
from keras_attention.masking import CarryMask
from keras_attention.parts import SavedSeeds, layers_inside


class Source(NamedTuple):
    """What attention needs of the source, computed once per batch.

    value: (B, S, D_v), 0 at masked steps; with H > 1 heads split, (B, H, S, D_v / H).
    keys: what `project_keys` made of it. mask: boolean (B, S) or (B, T, S), or None.
    """

    value: object
    keys: object
    mask: object = None


class BaseAttention(SavedSeeds, keras.layers.Layer):
    """The template: project, score, normalise, sum.

        e_{t,i} = score(q_t, k_i)                 the subclass
        a_{t,i} = masked softmax of e_t over i    here
        c_t     = sum_i a_{t,i} h_i               here, with the raw value

    A subclass defines `compute_scores(query, keys)`, (B, T, D_q) and (B, S, .) to (B, T, S). It
    may define `project_keys(key)`, what depends on the source alone; and, as any Keras layer,
    `build(query_shape, value_shape, key_shape=None)`, which calls `super().build(...)`, makes
    the weights and builds the layers made in `__init__` (a call on zeros builds those that it
    leaves), and `get_config`, which adds the arguments of its own `__init__` to
    `super().get_config()`. To be loaded without `custom_objects` it is decorated with
    `keras.saving.register_keras_serializable(package="mine")`.

    Args:
        dropout: Float, the share of weights dropped in the context, while training.
        seed: Integer for the dropout, or None.
        **kwargs: `name`, `dtype` and so on, as for every Keras layer.

    Call arguments:
        query: (B, T, D_q), or (B, D_q) for a single step.
        value: (B, S, D_v), the memory that is summed.
        key: (B, S, D_k), what is scored; `value` by default.
        query_mask: (B, T), or (B,) for a single step. A masked query has weights 0 and
            context 0. It travels on with the context.
        value_mask: (B, S), or (B, T, S) for a mask per query. Masked weights are exactly
            0 and what stands in a step that no query may see (NaN, too) never matters.
        training: Boolean; with `dropout`, whether to drop.

    Returns:
        Always two results: context (B, T, D_v) and weights (B, T, S); for a single step
        (B, D_v) and (B, S). With H > 1 heads the weights are (B, H, T, S) or (B, H, S).
        `dropout` changes the context, never the weights returned.

    Raises:
        ValueError: A rank, batch, width or mask that does not fit, or scores of a subclass
            that would broadcast.
        TypeError: A ragged tensor.
        NotImplementedError: A subclass without `compute_scores`, or whose arguments
            `get_config` would lose.

    Example, a whole attention of one's own:

    >>> from keras_attention import functions
    >>> class ScaledDotAttention(BaseAttention):
    ...     def compute_scores(self, query, keys):
    ...         return functions.dot_scores(query, keys) / keys.shape[-1] ** 0.5
    >>> query, value = keras.random.normal((2, 3, 6)), keras.random.normal((2, 5, 6))
    >>> context, weights = ScaledDotAttention()(query, value)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 6), (2, 3, 5))
    """

    num_heads = 1

    def __init__(self, *, dropout=0.0, seed=None, **kwargs):
        checks.check_rate(type(self).__name__, "dropout", dropout)
        super().__init__(**kwargs)
        self.dropout = dropout
        self.seed = seed
        self.supports_masking = True
        self.widths = {}
        if dropout:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.carry_mask = CarryMask(dtype=self.dtype_policy, name="carry_mask")

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._check_shapes(query_shape, value_shape, key_shape)
        shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
        for name, shape in shapes.items():
            checks.check_known_width(self, name, shape)
        self.widths = {name: shape[-1] for name, shape in shapes.items()}
        self.carry_mask.build(query_shape)
        if type(self).build is BaseAttention.build:
            self.build_layers_inside(query_shape, value_shape, key_shape)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        training=None,
    ):
        given = {"query": query, "value": value, "key": key}
        checks.check_tensors(self, **given, query_mask=query_mask, value_mask=value_mask)
        key = value if key is None else key
        checks.check_float(self, query=query, value=value, key=key)
        self._check_shapes(query.shape, value.shape, key.shape)
        query_mask = None if query_mask is None else functions.as_mask(query_mask)
        value_mask = None if value_mask is None else functions.as_mask(value_mask)
        self._check_masks(query, value, query_mask, value_mask)

        single = len(query.shape) == 2
        steps_mask = query_mask
        if single:
            query = ops.expand_dims(query, 1)
            steps_mask = None if query_mask is None else ops.expand_dims(query_mask, 1)
        source = self.prepare(value, key, value_mask)
        dropout_mask = self.dropout_mask(query, value, training)
        context, weights = self.attend(query, source, steps_mask, dropout_mask)
        if single:
            context, weights = ops.squeeze(context, 1), ops.squeeze(weights, -2)
        if query_mask is not None:
            context = self.carry_mask(context, mask=query_mask)
        return context, weights

    @property
    def heads_shape(self):
        """(H,) or, for one head, (): what stands in the weights' shape for them."""
        return (self.num_heads,) if self.num_heads > 1 else ()

    def build_layers_inside(self, query_shape, value_shape, key_shape=None):
        """Builds, by a call on zeros, the layers inside that no `build` has built."""
        if all(layer.built for layer in layers_inside(self)):
            return
        widths = [one[-1] for one in (query_shape, value_shape, key_shape or value_shape)]
        sizes = zip((2, 3, 3), widths, strict=True)
        self.built = True  # so that the call does not build again
        try:
            self(*(ops.zeros((1, steps, width), self.compute_dtype) for steps, width in sizes))
        except Exception as error:
            self.built, self.widths = False, {}
            error.add_note(
                f"{type(self).__name__} '{self.name}' met this in its first call, with a query "
                f"of width D_q={widths[0]} and a key of width D_k={widths[2]}, which was made "
                "to build the layers inside. It is not made where `build` builds them. "
                + checks.IN_A_DECODER
            )
            raise

    def prepare(self, value, key=None, value_mask=None):
        """What depends on the source alone, as a `Source`: once per batch, not per step."""
        mask = None if value_mask is None else functions.as_mask(value_mask)
        seen = ops.any(mask, axis=1) if mask is not None and len(mask.shape) == 3 else mask
        memory = functions.zero_masked(ops.cast(value, self.compute_dtype), seen)
        if key is None or key is value:
            key = memory
        else:
            key = functions.zero_masked(ops.cast(key, self.compute_dtype), seen)
        if self.num_heads > 1:
            memory = functions.split_heads(memory, self.num_heads)
        return Source(memory, self.project_keys(key), mask)

    def attend(self, query, source, query_mask=None, dropout_mask=None):
        """Context and weights for query (B, T, D_q) and a prepared `source`.

        `call` without the checks and with the source's part done: for use in a loop.
        """
        query = functions.zero_masked(query, query_mask)
        scores = self.compute_scores(query, source.keys)  # (B, T, S) or (B, H, T, S)
        wanted = (query.shape[0], *self.heads_shape, query.shape[1], source.value.shape[-2])
        checks.check_scores(self, scores.shape, wanted)
        mask = functions.attention_mask(query_mask, source.mask)
        if mask is not None and self.num_heads > 1:
            mask = ops.expand_dims(mask, 1)
        weights = functions.masked_softmax(scores, mask)
        weights = ops.cast(weights, self.compute_dtype)
        kept = weights if dropout_mask is None else weights * dropout_mask
        context = functions.weighted_sum(kept, source.value)
        return functions.merge_heads(context) if self.num_heads > 1 else context, weights

    def project_keys(self, key):
        """(B, S, D_k) to (B, S, .), for `compute_scores`. Here: the key itself.

        Masked steps arrive as 0. A formula without a gradient there, such as a norm or a
        root, makes NaN of the whole gradient.
        """
        return key

    def compute_scores(self, query, keys):
        """Scores (B, T, S), or (B, H, T, S), before mask and softmax.

        Sum in float32 (`functions.wide`), where float16 would overflow.
        """
        raise NotImplementedError(
            f"{type(self).__name__} should define compute_scores(query, keys). Fix: return "
            "scores (B, T, S), for example functions.dot_scores(query, keys)."
        )

    def dropout_mask(self, query, value, training):
        """What the weights are multiplied by in the context, or None."""
        if not training or not self.dropout:
            return None
        steps = (ops.shape(query)[1], ops.shape(value)[-2])
        ones = ops.ones((ops.shape(query)[0], *self.heads_shape, *steps), self.compute_dtype)
        return keras.random.dropout(ones, self.dropout, seed=self.seed_generator)

    def compute_mask(self, query, query_mask):
        return [query_mask, None]

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        self._check_shapes(query_shape, value_shape, key_shape or value_shape)
        batch, steps = query_shape[0], tuple(query_shape[1:-1])
        return (
            (batch, *steps, value_shape[-1]),
            (batch, *self.heads_shape, *steps, value_shape[1]),
        )

    def get_config(self):
        checks.check_config(self, BaseAttention)
        config = {"dropout": self.dropout, "seed": self.seed}
        return {**super().get_config(), **config}

    def _check_shapes(self, query_shape, value_shape, key_shape):
        checks.check_rank(
            self,
            "query",
            query_shape,
            "(B, T, D_q)",
            "(B, D_q)",
            fix="reshape it to one vector per target step.",
        )
        for name, shape, symbols in (
            ("value", value_shape, "(B, S, D_v)"),
            ("key", key_shape, "(B, S, D_k)"),
        ):
            checks.check_rank(
                self,
                name,
                shape,
                symbols,
                fix="embed integer ids first; pass all steps of the encoder: "
                "return_sequences=True?",
            )
            checks.check_batch(self, name, shape, "query", query_shape)
        if None not in (key_shape[1], value_shape[1]) and key_shape[1] != value_shape[1]:
            checks.fail(
                self,
                "key",
                f"of as many steps as `value`, S={value_shape[1]}",
                f"shape {checks.as_shape(key_shape)}",
                "pass one key per value.",
            )
        symbols = {"query": "D_q", "value": "D_v", "key": "D_k"}
        shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
        for name, width in self.widths.items():
            checks.check_width(
                self,
                name,
                shapes[name],
                symbols[name],
                width,
                "as when the layer was built",
                "project it with a Dense layer, or transpose it if its axes are swapped. "
                + checks.IN_A_DECODER,
            )

    def _check_masks(self, query, value, query_mask, value_mask):
        batch, source_steps = query.shape[0], value.shape[1]
        single = len(query.shape) == 2
        if query_mask is not None:
            allowed = ("(B,)", (batch,)) if single else ("(B, T)", (batch, query.shape[1]))
            checks.check_mask(self, "query_mask", query_mask.shape, allowed)
        if value_mask is not None:
            steps = 1 if single else query.shape[1]
            checks.check_source_mask(self, "value_mask", value_mask, batch, steps, source_steps)
