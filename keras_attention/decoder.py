"""The attention decoder: a recurrent cell that looks at a memory at every step.

Sizes: B batch, T target steps, S source steps, D_x input width, D_q query width (of the
cell's state), D_v memory width, U units, H heads.
"""

import keras
from keras import ops

from keras_attention import cells, checks, functions
from keras_attention.attention import BahdanauAttention
from keras_attention.base import BaseAttention
from keras_attention.loop import run_loop
from keras_attention.masking import CarryMask
from keras_attention.parts import SavedSeeds, part_config, spread_policy


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionDecoder(SavedSeeds, keras.layers.Layer):
    """A recurrent decoder with attention, in the order of either paper.

        attend="before"  (Bahdanau)              attend="after"  (Luong)
        c_t = attention(s_{t-1})                 s_t = cell([x_t (; h~_{t-1})], s_{t-1})
        s_t = cell([x_t; c_t], s_{t-1})          c_t = attention(s_t)
        output s_t                               output h~_t = tanh(W_c [c_t; s_t])

    The query is the state that the cell outputs: of an LSTM its h, of a stack the top.
    `input_feeding` adds h~_{t-1} to the cell's input, and to the state. Without it,
    "after" runs the recurrent layer first and attends to all steps at once, which gives
    the same numbers sooner.

    Padding changes nothing: masked memory has weight 0, a masked target step leaves the
    whole state as it is, and its output and weights are 0.

    Args:
        cell: A Keras cell (`GRUCell`, `LSTMCell`, `SimpleRNNCell`, your own) or a list
            of them, stacked from the input up.
        attention: An attention layer, such as `BahdanauAttention` or `LuongAttention`.
        attend: "before" or "after" the cell's step. By default what the attention's
            paper does: "before" for `BahdanauAttention`, else "after".
        attentional_units: Integer, the width of h~_t. By default the cell's output size
            for "after"; given with "before", the output is h~_t there as well.
        input_feeding: Boolean; only with "after" (with "before" the context is already
            fed to the cell).
        **kwargs: `name`, `dtype` and so on. A `dtype` given here reaches every layer
            inside that has no policy of its own.

    Call arguments:
        inputs: Float tensor (B, T, D_x); with teacher forcing, the embedded target
            shifted by one.
        memory: Float tensor (B, S, D_v), every step of the encoder.
        initial_state: What an earlier call or `BiEncoder` returned: a list with one
            tensor (B, size) per state of the cell (a bare tensor for a single state), or
            the decoder's whole state. Zeros by default.
        inputs_mask: Boolean (B, T). memory_mask: Boolean (B, S), or (B, T, S) for a mask
            per target step. Attached masks arrive by themselves.
        training: Boolean, for dropout.

    Returns:
        Always three results:
        outputs: (B, T, .), which carries `inputs_mask` on.
        weights: (B, T, S), or (B, H, T, S) with several heads.
        state: A list of tensors to pass back as `initial_state`. Cut the target into
            pieces, down to single steps, and all three results are the same.

    Raises:
        ValueError: An argument, rank, width, batch, mask or state that does not fit, or no
            step at all.
        TypeError: A ragged tensor.

    Example:

    >>> decoder = AttentionDecoder(keras.layers.GRUCell(7), BahdanauAttention(5))
    >>> inputs, memory = keras.random.normal((2, 3, 4)), keras.random.normal((2, 5, 6))
    >>> outputs, weights, state = decoder(inputs, memory)
    >>> tuple(outputs.shape), tuple(weights.shape), [tuple(s.shape) for s in state]
    ((2, 3, 7), (2, 3, 5), [(2, 7)])

    References:
        Bahdanau, Cho and Bengio 2014, https://arxiv.org/abs/1409.0473, section 3.1. There
        the output also sees the context, in a maxout layer; here `attentional_units` does
        that in Luong's form.
        Luong, Pham and Manning 2015, https://arxiv.org/abs/1508.04025, equation 5,
        and section 3.3 for input feeding.
    """

    def __init__(
        self,
        cell,
        attention,
        *,
        attend=None,
        attentional_units=None,
        input_feeding=False,
        **kwargs,
    ):
        if isinstance(cell, (list, tuple)) and cell:
            cell = keras.layers.StackedRNNCells(list(cell))
        _check_parts(cell, attention)
        if attend is None:
            attend = "before" if isinstance(attention, BahdanauAttention) else "after"
        checks.check_choice("AttentionDecoder", "attend", attend, ("before", "after"))
        if attentional_units is not None:
            attentional_units = checks.positive_int(
                "AttentionDecoder", "attentional_units", attentional_units
            )
        if input_feeding and attend == "before":
            raise ValueError(
                "AttentionDecoder: `input_feeding` should be False with attend='before', "
                "where the context already enters the cell. Fix: attend='after'."
            )
        super().__init__(**kwargs)
        spread_policy(kwargs.get("dtype"), cell)
        spread_policy(kwargs.get("dtype"), attention)
        self.cell = cell
        self.attention = attention
        self.attend = attend
        self.attentional_units = attentional_units
        self.input_feeding = input_feeding
        self.supports_masking = True
        self.widths = {}
        self.carry_mask = CarryMask(dtype=self.dtype_policy, name="carry_mask")
        self.projects = attend == "after" or attentional_units is not None
        # The whole-sequence layer around `cell`, where nothing but the cell recurs.
        self.recurrent = None
        if attend == "after" and not input_feeding:
            self.recurrent = cells.whole_sequence(cell)

    @property
    def state_size(self):
        """A list with the width of each state tensor."""
        fed = [self.output_size] if self.input_feeding else []
        return cells.state_sizes(self.cell) + fed

    @property
    def output_size(self):
        if self.projects:
            return self.attentional_units or cells.output_size(self.cell)
        return cells.output_size(self.cell)

    def build(self, inputs_shape, memory_shape, initial_state_shape=None):
        self._check_shapes(inputs_shape, memory_shape, initial_state_shape)
        checks.check_known_width(self, "inputs", inputs_shape)
        checks.check_known_width(self, "memory", memory_shape)
        self.widths = {"inputs": inputs_shape[-1], "memory": memory_shape[-1]}
        self.carry_mask.build(inputs_shape)
        query_width = cells.output_size(self.cell)
        if self.attend == "before":
            query_width = cells.state_sizes(self.cell)[cells.query_index(self.cell)]
        batch = inputs_shape[0]
        attended = (batch, None, query_width), tuple(memory_shape)
        if self.attention.built:
            self.attention.compute_output_shape(*attended)  # checks what it was built for
        else:
            self.attention.build(*attended)
            # The decoder attends without a call of the layer, which would build what is left.
            self.attention.build_layers_inside(*attended)
        fed = {"before": memory_shape[-1], "after": self.output_size * self.input_feeding}
        self.cell_width = cell_width = inputs_shape[-1] + fed[self.attend]
        if not self.cell.built:
            self.cell.build((batch, cell_width))
        if self.recurrent is not None:
            self.recurrent.build((batch, None, cell_width))
        if self.projects:
            self.attentional_projection = keras.layers.Dense(
                self.output_size,
                activation="tanh",
                use_bias=False,
                dtype=self.dtype_policy,
                name="attentional_projection",
            )
            width = memory_shape[-1] + cells.output_size(self.cell)
            self.attentional_projection.build((batch, None, width))

    def call(
        self,
        inputs,
        memory,
        initial_state=None,
        inputs_mask=None,
        memory_mask=None,
        training=None,
    ):
        given = {"inputs": inputs, "memory": memory}
        masks = {"inputs_mask": inputs_mask, "memory_mask": memory_mask}
        checks.check_tensors(self, **given, **masks)
        checks.check_float(self, **given)
        self._check_shapes(inputs.shape, memory.shape)
        inputs_mask = None if inputs_mask is None else functions.as_mask(inputs_mask)
        memory_mask = None if memory_mask is None else functions.as_mask(memory_mask)
        self._check_masks(inputs, memory, inputs_mask, memory_mask)
        state = self._full_state(initial_state, inputs)
        source = self.prepare(memory, memory_mask)
        inputs = functions.zero_masked(inputs, inputs_mask)
        if self.recurrent is not None:
            run = self._recur_then_attend
        else:
            run = self._attend_at_each_step
        outputs, weights, state = run(inputs, inputs_mask, state, source, training)
        if inputs_mask is not None:
            outputs = functions.zero_masked(outputs, inputs_mask)
            outputs = self.carry_mask(outputs, mask=inputs_mask)
        return outputs, weights, state

    def get_initial_state(self, batch_size, first=None):
        """Zeros (or what the cell starts from), one tensor per entry of `state_size`.

        first: The first of them, such as `BiEncoder` returns, unchecked: only the rest is
            filled up, and all are cast to the compute dtype.
        """
        state = [] if first is None else keras.tree.flatten(first)
        of_cell = len(cells.state_sizes(self.cell))
        if len(state) < of_cell and hasattr(self.cell, "get_initial_state"):
            own = keras.tree.flatten(self.cell.get_initial_state(batch_size=batch_size))
            state += own[len(state) :]
        missing = self.state_size[len(state) :]
        state += [ops.zeros((batch_size, size)) for size in missing]
        return [ops.cast(one, self.compute_dtype) for one in state]

    def prepare(self, memory, memory_mask=None):
        """What depends on the source alone, once per batch; the `source` of `step`."""
        return self.attention.prepare(memory, value_mask=memory_mask)

    def step(self, inputs, state, source):
        """One step, for generation: no dropout, and nothing stays on the layer.

        Args:
            inputs: (N, D_x). N is B, or a multiple of it: of each row of the source K
                hypotheses, one after the other, which then share it.
            state: List as `get_initial_state` or an earlier step gives it, N rows each.
            source: What `prepare` returned; its mask, if any, is (B, S).

        Returns:
            output (N, .), weights (N, S) or (N, H, S), and the new state.
        """
        if not self.built:
            raise ValueError(
                f"AttentionDecoder '{self.name}': `step` needs a decoder that is built. "
                "Fix: call it once on whole sequences, or build(inputs_shape, memory_shape)."
            )
        checks.check_rank(self, "inputs", inputs.shape, "(N, D_x)", fix="one step: x[:, t].")
        checks.check_float(self, inputs=inputs)
        why, fix = "as when the layer was built", "embed the token as in training."
        width = self.widths["inputs"]
        checks.check_width(self, "inputs", inputs.shape, "D_x", width, why, fix)
        shapes = [tuple(one.shape) for one in state]
        self._check_state("state", shapes, [len(self.state_size)], inputs.shape)
        checks.check_multiple(self, "inputs", inputs.shape, "source", source.value.shape)
        return self._step(inputs, state, source, training=False, each=-1)

    def compute_mask(self, inputs, inputs_mask):
        return [inputs_mask]

    def compute_output_shape(self, inputs_shape, memory_shape, initial_state_shape=None):
        self._check_shapes(inputs_shape, memory_shape, initial_state_shape)
        batch, steps = inputs_shape[:2]
        weights = (batch, *self.attention.heads_shape, steps, memory_shape[1])
        state = [(batch, size) for size in self.state_size]
        return (batch, steps, self.output_size), weights, state

    def get_config(self):
        config = {
            "cell": part_config(self.cell),
            "attention": part_config(self.attention),
            "attend": self.attend,
            "attentional_units": self.attentional_units,
            "input_feeding": self.input_feeding,
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config):
        names = ("cell", "attention")
        parts = {n: keras.saving.deserialize_keras_object(config[n]) for n in names}
        return cls(**{**config, **parts})

    def _recur_then_attend(self, inputs, inputs_mask, state, source, training):
        """The fast way of "after": attention is one batched product for all steps."""
        states, *state = self.recurrent(
            inputs,
            initial_state=cells.nested(self.cell, state),
            mask=inputs_mask,
            training=training,
        )
        dropout_mask = self.attention.dropout_mask(states, source.value, training)
        context, weights = self.attention.attend(states, source, inputs_mask, dropout_mask)
        outputs = self._attentional(context, states)
        outputs, weights, *state = self._own_dtype(outputs, weights, *state)
        return outputs, weights, state

    def _attend_at_each_step(self, inputs, inputs_mask, state, source, training):
        """The general way: `_step` in a loop."""
        extras = {}
        dropout_mask = self.attention.dropout_mask(inputs, source.value, training)
        if dropout_mask is not None:
            extras["dropout_mask"] = self._steps_first(dropout_mask)
        if source.mask is not None and len(source.mask.shape) == 3:
            extras["memory_mask"] = ops.cast(source.mask, self.compute_dtype)
            source = source._replace(mask=None)

        def step(inputs, state, **extra):
            return self._step(inputs, state, source, training, **extra)

        batch = ops.shape(inputs)[0]
        with cells.drawn_dropout(self.cell, batch, self.cell_width, training):
            outputs, weights, state = run_loop(
                step,
                inputs,
                extras,
                state,
                inputs_mask,
                output_size=self.output_size,
                weights_shape=(*self.attention.heads_shape, ops.shape(source.value)[-2]),
                policy=self.dtype_policy,
            )
        return outputs, self._steps_first(weights), state

    def _step(
        self, inputs, state, source, training, dropout_mask=None, memory_mask=None, each=1
    ):
        """The one step: what generation, the loop and `step` all run."""
        if memory_mask is not None:
            mask = ops.expand_dims(functions.as_mask(memory_mask), 1)
            source = source._replace(mask=mask)
        if dropout_mask is not None:
            dropout_mask = ops.expand_dims(dropout_mask, -2)
        cell_states = state[:-1] if self.input_feeding else state
        if self.attend == "before":
            query = cell_states[cells.query_index(self.cell)]
            context, weights = self._attend_once(query, source, dropout_mask, each)
            inputs = ops.concatenate([inputs, context], axis=-1)
        elif self.input_feeding:
            inputs = ops.concatenate([inputs, state[-1]], axis=-1)
        output, cell_states = cells.run(self.cell, inputs, cell_states, training)
        if self.attend == "after":
            context, weights = self._attend_once(output, source, dropout_mask, each)
        if self.projects:
            output = self._attentional(context, output)
        fed = [output] if self.input_feeding else []
        output, weights, *state = self._own_dtype(output, weights, *cell_states, *fed)
        return output, weights, state

    def _own_dtype(self, *results):
        """A part with a dtype policy of its own changes neither results nor a loop's state."""
        return [ops.cast(one, self.compute_dtype) for one in keras.tree.flatten(results)]

    def _attend_once(self, query, source, dropout_mask, each):
        """Query (N, D_q): the rows that share a row of the source attend together.

        each: How many they are, N / B; -1 to find out.
        """
        rows = ops.shape(source.value)[0]
        query = ops.reshape(query, (rows, each, query.shape[-1]))  # (B, K, D_q)
        context, weights = self.attention.attend(query, source, None, dropout_mask)
        weights = self._steps_first(weights)  # (B, K, S) or (B, K, H, S)
        context = ops.reshape(context, (-1, context.shape[-1]))
        return context, ops.reshape(
            weights, (-1, *self.attention.heads_shape, ops.shape(weights)[-1])
        )

    def _attentional(self, context, state):
        return self.attentional_projection(ops.concatenate([context, state], axis=-1))

    def _steps_first(self, weights):
        """(B, H, T, S) to (B, T, H, S), or back; (B, T, S) as it is."""
        return ops.transpose(weights, (0, 2, 1, 3)) if self.attention.heads_shape else weights

    def _full_state(self, initial_state, inputs):
        """The state as a flat list in the compute dtype, checked; h~_0 is 0 if left out."""
        if initial_state is not None:
            flat = keras.tree.flatten(initial_state)
            initial_state = [ops.convert_to_tensor(one) for one in flat]
            shapes = [tuple(one.shape) for one in initial_state]
            self._check_state("initial_state", shapes, self._state_counts(), inputs.shape)
        return self.get_initial_state(ops.shape(inputs)[0], initial_state)

    def _state_counts(self):
        """How many tensors an initial state may have: h~ may be left out."""
        whole = len(self.state_size)
        return [whole - 1, whole] if self.input_feeding else [whole]

    def _check_state(self, name, shapes, counts, inputs_shape):
        sizes = self.state_size
        checks.check_states(self, name, shapes, sizes, counts, "inputs", inputs_shape)

    def _check_shapes(self, inputs_shape, memory_shape, initial_state_shape=None):
        fix = "embed integer ids first; a single step is x[:, None, :], or use `step`."
        checks.check_rank(self, "inputs", inputs_shape, "(B, T, D_x)", fix=fix)
        fix = "embed integer ids first; pass all steps of the encoder: return_sequences=True?"
        checks.check_rank(self, "memory", memory_shape, "(B, S, D_v)", fix=fix)
        checks.check_batch(self, "memory", memory_shape, "inputs", inputs_shape)
        checks.check_steps(self, "inputs", inputs_shape)
        checks.check_steps(self, "memory", memory_shape)
        if initial_state_shape is not None:
            shapes = checks.flat_shapes(initial_state_shape)
            self._check_state("initial_state", shapes, self._state_counts(), inputs_shape)
        shapes = {"inputs": (inputs_shape, "D_x"), "memory": (memory_shape, "D_v")}
        for name, width in self.widths.items():
            shape, symbol = shapes[name]
            why, fix = "as when the layer was built", "project it with a Dense layer."
            checks.check_width(self, name, shape, symbol, width, why, fix)

    def _check_masks(self, inputs, memory, inputs_mask, memory_mask):
        (batch, steps), source_steps = inputs.shape[:2], memory.shape[1]
        if inputs_mask is not None:
            allowed = ("(B, T)", (batch, steps))
            checks.check_mask(self, "inputs_mask", inputs_mask.shape, allowed)
        if memory_mask is not None:
            checks.check_source_mask(
                self, "memory_mask", memory_mask, batch, steps, source_steps
            )


def _check_parts(cell, attention):
    for one in cells.single_cells(cell):
        if isinstance(one, keras.layers.RNN):
            raise ValueError(
                "AttentionDecoder: `cell` should be a cell, but received the layer "
                f"{type(one).__name__}. Fix: pass a cell, such as GRUCell(128)."
            )
        if not isinstance(one, keras.layers.Layer) or not hasattr(one, "state_size"):
            raise ValueError(
                "AttentionDecoder: `cell` should be a Keras cell (a layer with "
                f"`state_size`) or a list of one or more, but received {one!r}. "
                "Fix: pass GRUCell(128)."
            )
    if not isinstance(attention, BaseAttention):
        raise ValueError(
            "AttentionDecoder: `attention` should be a keras_attention layer, a subclass "
            f"of BaseAttention, but received {attention!r}. "
            "Fix: pass BahdanauAttention(units) or LuongAttention()."
        )
