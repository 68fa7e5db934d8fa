"""Gradients on whichever backend runs: the one place in the tests that knows them.

JAX compiles a gradient as a whole, faster than its operations one by one:
`disable_jit(False)` undoes the fixture `op_by_op`.
"""

import keras
import numpy as np
from keras import ops


def input_gradients(function, *inputs):
    """The gradient of the scalar `function(*tensors)` for each input array, as NumPy."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        grad = jax.grad(function, argnums=tuple(range(len(inputs))))
        with jax.disable_jit(False):
            found = jax.jit(grad)(*[ops.convert_to_tensor(x) for x in inputs])
    elif backend == "torch":
        tensors = [ops.convert_to_tensor(x).clone().requires_grad_() for x in inputs]
        function(*tensors).backward()
        found = [x.grad for x in tensors]
    else:
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(x) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            scalar = function(*tensors)
        found = tape.gradient(scalar, tensors)
    return [
        np.zeros(np.shape(x)) if g is None else ops.convert_to_numpy(ops.cast(g, "float64"))
        for x, g in zip(inputs, found, strict=True)
    ]


def weight_gradients(layer, function):
    """The gradient of the scalar `function()`, which calls `layer`, for each weight."""
    variables = layer.trainable_variables
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def stateless(values):
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function()

        with jax.disable_jit(False):
            found = jax.jit(jax.grad(stateless))([v.value for v in variables])
    elif backend == "torch":
        layer.zero_grad()
        function().backward()
        found = [v.value.grad for v in variables]
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            scalar = function()
        found = tape.gradient(scalar, [v.value for v in variables])
    return [ops.convert_to_numpy(g) for g in found]
