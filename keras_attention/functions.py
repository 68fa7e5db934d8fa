"""The mathematics of recurrent attention: tensors in, tensors out.

No function here holds weights, configuration or state, and none checks shapes:
the layers do that once, where they can name the argument. Sizes used below:

    B  batch           T    target steps (queries)   S    source steps
    U  units           D_q  query width              D_v  value width
    H  heads
"""

import math

import keras
import numpy as np
from keras import ops

LOWEST = {dtype: float(np.finfo(dtype).min) for dtype in ("float32", "float64")}


def wide(x):
    """`x` in float32, or in float64 where it is that already."""
    # Not keras.backend.result_type: on JAX it narrows float64 to float32.
    is_double = keras.backend.standardize_dtype(x.dtype) == "float64"
    return ops.cast(x, "float64" if is_double else "float32")


def as_mask(mask):
    """A boolean mask from any dtype: True, or a number that rounds away from 0, keeps."""
    mask = ops.convert_to_tensor(mask)
    if keras.backend.standardize_dtype(mask.dtype) == "bool":
        return mask
    return ops.abs(ops.cast(mask, "float32")) > 0.5


def zero_masked(x, mask):
    """`x` (B, N, D) with exact zeros at the steps that `mask` (B, N) leaves out.

    A selection, not a product: NaN and infinity in masked steps disappear, and
    the gradient that reaches them is exactly 0.
    """
    if mask is None:
        return x
    return ops.where(ops.expand_dims(mask, -1), x, ops.zeros_like(x))


def masked_softmax(scores, mask=None, axis=-1):
    """Softmax over the kept entries only; a row with nothing to keep is all 0.

    The maximum is taken over kept entries, so what stands in masked ones never
    matters. Computed and returned in float32 or wider.
    """
    scores = wide(scores)
    if mask is None and scores.shape[axis] != 1:  # for 1, Keras's softmax warns
        return ops.softmax(scores, axis=axis)
    kept = scores if mask is None else ops.where(mask, scores, -math.inf)
    # An empty row has no maximum; a finite one keeps the subtraction from being NaN. No
    # selection, which ONNX converters turn into a product that infinity makes NaN.
    lowest = LOWEST[keras.backend.standardize_dtype(scores.dtype)]
    top = ops.stop_gradient(ops.max(kept, axis=axis, keepdims=True, initial=lowest))
    exponentials = ops.exp(kept - top)
    total = ops.sum(exponentials, axis=axis, keepdims=True)
    weights = exponentials / ops.where(total > 0, total, ops.ones_like(total))
    # The LiteRT converter takes all this for a softmax of its own, in which masked entries
    # are not 0 where nothing is kept.
    return weights if mask is None else ops.where(mask, weights, ops.zeros_like(weights))


def dot_scores(query, keys):
    """e_{t,i} = q_t . k_i for query (..., T, D) and keys (..., S, D): (..., T, S)."""
    # Not matmul with transposed keys: in a loop, a transposed copy would be kept per step.
    # And Keras's matmul on PyTorch narrows a projected float64 query, which einsum refuses.
    keys = wide(keys)
    return ops.einsum("...td,...sd->...ts", ops.cast(query, keys.dtype), keys)


def additive_scores(query, keys, vector):
    """e_{t,i} = v . tanh(q_t + k_i), with query and keys already projected.

    query (..., T, U), keys (..., S, U), vector broadcastable to (..., 1, 1, U):
    (..., T, S). The sum over U runs in float32 or wider.
    """
    energies = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(keys, -3))
    return ops.sum(wide(energies) * wide(vector), axis=-1)


def weighted_sum(weights, value):
    """c_t = sum_i a_{t,i} h_i: weights (..., T, S), value (..., S, D): (..., T, D)."""
    return ops.matmul(weights, value)


def split_heads(x, num_heads):
    """(B, N, D) to (B, H, N, D/H): head h takes the h-th group of D/H columns."""
    grouped = ops.reshape(x, (-1, ops.shape(x)[1], num_heads, x.shape[-1] // num_heads))
    return ops.transpose(grouped, (0, 2, 1, 3))


def merge_heads(x):
    """(B, H, N, D/H) to (B, N, D): the inverse of `split_heads`."""
    batch, steps = ops.shape(x)[0], ops.shape(x)[2]
    width = x.shape[1] * x.shape[3]
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, steps, width))


def attention_mask(query_mask, value_mask):
    """One mask for the scores (B, T, S), from query (B, T) and value (B, S) or (B, T, S).

    None where both are None; a size that neither mask tells is 1.
    """
    if value_mask is not None and len(value_mask.shape) == 2:
        value_mask = ops.expand_dims(value_mask, 1)
    if query_mask is None:
        return value_mask
    query_mask = ops.expand_dims(query_mask, -1)
    if value_mask is None:
        return query_mask
    return ops.logical_and(query_mask, value_mask)
