"""The loop over target steps: `keras.layers.RNN` around any step function.

Sizes: B batch, T target steps, D input width, O output width.
"""

import math

import keras
from keras import ops


def run_loop(step, inputs, extras, state, mask, *, output_size, weights_shape, policy):
    """Runs `step` over the time axis with Keras's own loop.

    `RNN` carries one tensor in and one out, so what else differs from step to step
    enters beside the inputs, and the weights leave behind the outputs. Everything that
    does not change, `step` takes from its own scope: every backend then sees that it is
    the same at each step, and keeps one copy.

    Args:
        step: `step(inputs, state, **extras) -> output, weights, state` for one step, with
            inputs (B, D), output (B, O) and weights (B, *weights_shape).
        inputs: (B, T, D).
        extras: Dict of tensors (B, T, ...), given to `step` by name as (B, ...).
        state: Flat list of tensors (B, .).
        mask: Boolean (B, T) or None. A masked step leaves the state; its results are 0.
        output_size: O.
        weights_shape: Sizes, which may be tensors.
        policy: The dtype policy of the loop.

    Returns:
        outputs (B, T, O), weights (B, T, *weights_shape) and the last state.
    """
    width = inputs.shape[-1]
    batch, steps = ops.shape(inputs)[0], ops.shape(inputs)[1]

    def packed_step(packed, state):
        found, start = {}, width
        for name, extra in extras.items():
            sizes = ops.shape(extra)[2:]
            stop = start + math.prod(sizes)
            found[name] = ops.reshape(packed[:, start:stop], (batch, *sizes))
            start = stop
        inputs_step = ops.reshape(packed[:, :width], (batch, width))
        output, weights, state = step(inputs_step, state, **found)
        weights = ops.reshape(weights, (batch, math.prod(weights_shape)))
        return ops.concatenate([output, weights], axis=-1), state

    flat = [
        ops.reshape(extra, (batch, steps, math.prod(ops.shape(extra)[2:])))
        for extra in extras.values()
    ]
    packed = ops.concatenate([inputs, *flat], axis=-1) if flat else inputs
    loop = keras.layers.RNN(
        _StepAsCell(packed_step, [one.shape[-1] for one in state], policy.compute_dtype),
        return_sequences=True,
        return_state=True,
        zero_output_for_mask=True,
        dtype=policy,
    )
    packed, *state = loop(packed, initial_state=state, mask=mask)
    outputs = ops.reshape(packed[..., :output_size], (batch, steps, output_size))
    weights = ops.reshape(packed[..., output_size:], (batch, steps, *weights_shape))
    return outputs, weights, state


class _StepAsCell:
    """A step function in the form that `RNN` takes as a cell. It lives for one call."""

    def __init__(self, step, state_size, compute_dtype):
        self.call = step
        self.state_size = state_size
        self.compute_dtype = compute_dtype

    def __call__(self, inputs, states):
        return self.call(inputs, list(states))
