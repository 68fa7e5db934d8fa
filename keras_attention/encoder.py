"""The bidirectional encoder: a memory to attend to, and a first state for the decoder.

Sizes: B batch, S source steps, D input width, U units of one direction.
"""

import keras
from keras import ops

from keras_attention import cells, checks, functions
from keras_attention.masking import CarryMask
from keras_attention.parts import SavedSeeds, part_config, spread_policy

MERGE_MODES = ("concat", "sum", "ave", "mul")


@keras.saving.register_keras_serializable(package="keras_attention")
class BiEncoder(SavedSeeds, keras.layers.Layer):
    """A recurrent layer read in both directions, with a bridge to the decoder.

        h_i = [h_fwd_i; h_bwd_i]                         memory
        s_0 = tanh(W [h_fwd_S; h_bwd_1] + b)             state

    A cell with several states gets a bridge for each; an LSTM's cell state goes through
    one without tanh, since it is not bounded.

    Padding changes nothing, wherever it stands: on the right, on the left or in a gap.
    Masked steps are skipped by both directions, NaN in them never matters, and the memory
    there is exactly 0.

    Args:
        layer: A Keras recurrent layer (`GRU(128)`, `LSTM(128, recurrent_dropout=0.1)`,
            `SimpleRNN(128)`, `RNN(cell)`), or a list of them, stacked from the input up.
            It is a pattern: both directions are copies of it, and `return_sequences`,
            `return_state` and `go_backwards` are set here.
        merge_mode: How the directions meet: "concat", "sum", "ave" or "mul".
        state_units: Integer, the width of each state, when bridged. By default that of
            the (top) layer's states.
        bridge: The activation of the bridge, "tanh" in the paper. None leaves the bridge
            out and concatenates the final states of both directions.
        **kwargs: `name`, `dtype` and so on. A `dtype` given here reaches every layer
            inside that has no policy of its own.

    Call arguments:
        inputs: Float tensor (B, S, D).
        mask: Boolean (B, S), True for real steps. An attached mask arrives by itself.
        training: Boolean, for the dropout of the layers.

    Returns:
        memory: (B, S, 2U) for "concat", else (B, S, U). It carries the mask on.
        state: A list with one tensor per state of the (top) cell, (B, state_units), or
            (B, 2U) without a bridge: what `AttentionDecoder` takes as `initial_state`.

    Raises:
        ValueError: An argument, rank, width or mask that does not fit, or no step at all.
        TypeError: A ragged tensor.

    On a GPU, Keras's own GRU and LSTM accept padding on the right only; for padding
    elsewhere give the layer `use_cudnn=False`.

    Example:

    >>> encoder = BiEncoder(keras.layers.GRU(8), state_units=7)
    >>> memory, state = encoder(keras.random.normal((2, 5, 3)))
    >>> tuple(memory.shape), [tuple(s.shape) for s in state]
    ((2, 5, 16), [(2, 7)])

    Reference:
        Bahdanau, Cho and Bengio 2014, https://arxiv.org/abs/1409.0473, section 3.2 and
        appendix A.2. There s_0 = tanh(W h_bwd_1), of the backward direction alone, and the
        gated unit resets before its matrix product, as `GRU(U, reset_after=False)` does.
    """

    def __init__(
        self, layer, *, merge_mode="concat", state_units=None, bridge="tanh", **kwargs
    ):
        layers = list(layer) if isinstance(layer, (list, tuple)) else [layer]
        _check_layers(layers)
        checks.check_choice("BiEncoder", "merge_mode", merge_mode, MERGE_MODES)
        if state_units is not None:
            state_units = checks.positive_int("BiEncoder", "state_units", state_units)
        super().__init__(**kwargs)
        self.merge_mode = merge_mode
        self.state_units = state_units
        self.bridge = None if bridge is None else keras.activations.get(bridge)
        self.supports_masking = True
        self.width = None
        patterns = [_pattern(one, kwargs.get("dtype")) for one in layers]
        self.directions = [self._both_directions(one) for one in patterns]
        # While Keras loads a model it knows objects by their id. A pattern that died would
        # leave its id to a later one, and Keras would take that one for the same object.
        # Inside a function, so that Keras does not count them among the layers.
        self._kept_alive = lambda: (layers, patterns)
        self.carry_mask = CarryMask(dtype=self.dtype_policy, name="carry_mask")
        self.bridges = self._make_bridges()

    @property
    def layer(self):
        """The recurrent layer, or the list of them, as read forwards."""
        forward = [both.forward_layer for both in self.directions]
        return forward if len(forward) > 1 else forward[0]

    def build(self, inputs_shape):
        self._check_inputs(inputs_shape)
        checks.check_known_width(self, "inputs", inputs_shape)
        self.width = inputs_shape[-1]
        shape = tuple(inputs_shape)
        for both in self.directions:
            both.build(shape)
            shape = tuple(both.compute_output_shape(shape)[0])
        self.carry_mask.build(shape)
        for dense, size in zip(self.bridges, self._state_sizes(), strict=False):
            dense.build((shape[0], 2 * size))

    def call(self, inputs, mask=None, training=None):
        checks.check_tensors(self, inputs=inputs, mask=mask)
        checks.check_float(self, inputs=inputs)
        self._check_inputs(inputs.shape)
        if mask is not None:
            mask = functions.as_mask(mask)
            checks.check_mask(self, "mask", mask.shape, ("(B, S)", tuple(inputs.shape[:2])))
        memory = functions.zero_masked(inputs, mask)
        for both in self.directions:
            memory, *finals = both(memory, mask=mask, training=training)
        memory = functions.zero_masked(memory, mask)
        if mask is not None:
            memory = self.carry_mask(memory, mask=mask)

        finals = keras.tree.flatten(finals)
        forward, backward = finals[: len(finals) // 2], finals[len(finals) // 2 :]
        # Of a stack inside one layer, `RNN([cell, cell])`, the states of the top cell.
        top = len(self._state_sizes())
        pairs = zip(forward[-top:], backward[-top:], strict=True)
        state = [ops.concatenate(pair, axis=-1) for pair in pairs]
        if self.bridges:
            state = [dense(x) for dense, x in zip(self.bridges, state, strict=True)]
        return memory, state

    def compute_mask(self, inputs, mask):
        return [mask]

    def compute_output_shape(self, inputs_shape):
        self._check_inputs(inputs_shape)
        shape = tuple(inputs_shape)
        for both in self.directions:
            shape = tuple(both.compute_output_shape(shape)[0])
        sizes = self._state_sizes()
        widths = [d.units for d in self.bridges] or [2 * size for size in sizes]
        return shape, [(shape[0], width) for width in widths]

    def get_config(self):
        config = {
            "layer": [part_config(both.forward_layer) for both in self.directions],
            "merge_mode": self.merge_mode,
            "state_units": self.state_units,
            "bridge": self.bridge and keras.activations.serialize(self.bridge),
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config):
        layers = [keras.saving.deserialize_keras_object(one) for one in config["layer"]]
        return cls(**{**config, "layer": layers})

    def _both_directions(self, pattern):
        return keras.layers.Bidirectional(
            pattern,
            merge_mode=self.merge_mode,
            dtype=pattern.dtype_policy,
            name=f"bidirectional_{pattern.name.removeprefix('forward_')}",
        )

    def _make_bridges(self):
        if self.bridge is None:
            return []
        return [
            keras.layers.Dense(
                self.state_units or size,
                # Only the first state of a cell is an output, bounded by the bridge.
                activation=self.bridge if index == 0 else None,
                dtype=self.dtype_policy,
                name="bridge" if index == 0 else f"bridge_{index}",
            )
            for index, size in enumerate(self._state_sizes())
        ]

    def _state_sizes(self):
        cell = self.directions[-1].forward_layer.cell
        return cells.state_sizes(cells.single_cells(cell)[-1])

    def _check_inputs(self, shape):
        checks.check_rank(
            self,
            "inputs",
            shape,
            "(B, S, D)",
            fix="embed integer ids first, add the feature axis with x[..., None], or "
            "flatten the features into one axis.",
        )
        checks.check_steps(self, "inputs", shape)
        why, fix = "as when the layer was built", "project it with a Dense layer."
        checks.check_width(self, "inputs", shape, "D", self.width, why, fix)


def _check_layers(layers):
    if not layers:
        raise ValueError("BiEncoder: `layer` should not be empty. Fix: pass GRU(128).")
    for layer in layers:
        if not isinstance(layer, keras.layers.RNN):
            raise ValueError(
                "BiEncoder: `layer` should be a Keras recurrent layer or a list of them, "
                f"but received {layer!r}. Fix: pass GRU(128), or RNN(cell) for a cell."
            )
        if layer.stateful:
            raise ValueError(
                f"BiEncoder: `layer` '{layer.name}' should not be stateful, since the "
                "backward direction needs the whole sequence. Fix: stateful=False."
            )


def _pattern(layer, dtype):
    """A copy of `layer`, as both directions are to be."""
    settings = {"return_sequences": True, "return_state": True, "go_backwards": False}
    pattern = layer.from_config({**layer.get_config(), **settings})
    if hasattr(layer, "use_cudnn"):  # not part of Keras's config
        pattern.use_cudnn = layer.use_cudnn
    spread_policy(dtype, pattern, copy_of=layer)
    return pattern
