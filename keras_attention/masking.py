"""Layers about masks: the softmax that respects one, and one that passes it on."""

import keras
from keras import ops

from keras_attention import checks, functions


@keras.saving.register_keras_serializable(package="keras_attention")
class MaskedSoftmax(keras.layers.Layer):
    """Softmax over the kept entries only.

        w_i = exp(e_i - m) / sum_j exp(e_j - m)    for kept i and j, m = max over kept
        w_i = 0                                    exactly, for masked i

    A row with nothing to keep is all 0. What stands in a masked entry (1e4, infinity,
    NaN) never matters, neither in the result nor in the gradient. It differs there
    from `keras.layers.Softmax`, which adds a large negative number.

    Args:
        axis: Integer, the axis that is normalised.
        **kwargs: `name`, `dtype` and so on, as for every Keras layer.

    Call arguments:
        scores: Float tensor of any rank and shape.
        mask: Tensor that broadcasts to `scores` by NumPy's rule (aligned from the
            right); True, or non-zero, keeps. Floats are rounded first. A mask that is
            attached to `scores` arrives by itself; if it has one entry per step, turn it
            into one of the scores' rank by hand, for example `mask[..., None]`.

    Returns:
        Weights of the shape of `scores`, in the layer's compute dtype. They are computed
        in float32 or wider; `scores` are not cast down before.

    Raises:
        ValueError: The mask does not broadcast to `scores`, or `axis` is no integer.
        TypeError: A ragged tensor.

    Example:

    >>> scores, mask = ops.array([[0.0, 1.0, 1e4]]), ops.array([[True, True, False]])
    >>> weights = MaskedSoftmax()(scores, mask=mask)
    >>> [f"{float(weight):.3f}" for weight in weights[0]]
    ['0.269', '0.731', '0.000']
    """

    def __init__(self, axis=-1, **kwargs):
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise ValueError(
                f"MaskedSoftmax: `axis` should be an integer, but received axis={axis!r}. "
                "Fix: pass one axis, such as -1."
            )
        # A float32 score of 1e5 is fine here and infinite in float16.
        super().__init__(**{"autocast": False, **kwargs})
        self.axis = axis
        self.supports_masking = True

    def build(self, scores_shape):
        pass

    def call(self, scores, mask=None):
        checks.check_tensors(self, scores=scores, mask=mask)
        scores = ops.convert_to_tensor(scores)
        if not -len(scores.shape) <= self.axis < len(scores.shape):
            checks.fail(
                self,
                "scores",
                f"of a rank that has axis={self.axis}",
                f"shape {checks.as_shape(scores.shape)}",
                "pass axis=-1, the last.",
            )
        if mask is not None:
            mask = functions.as_mask(mask)
            checks.check_broadcast(self, "mask", mask.shape, "scores", scores.shape)
        weights = functions.masked_softmax(scores, mask, axis=self.axis)
        return ops.cast(weights, self.compute_dtype)

    def compute_output_shape(self, scores_shape):
        return scores_shape

    def get_config(self):
        return {**super().get_config(), "axis": self.axis}


@keras.saving.register_keras_serializable(package="keras_attention")
class CarryMask(keras.layers.Layer):
    """The identity, whose output carries the mask it is given.

    Keras passes on the mask that is attached to a layer's first input. A mask given
    by hand (`query_mask=...`) would stop there; this lets it travel on as well.
    """

    def __init__(self, **kwargs):
        super().__init__(**{"autocast": False, **kwargs})
        self.supports_masking = True
        self.built = True  # there is nothing to build, and `quantize` asks

    def call(self, inputs, mask=None):
        return inputs


@keras.saving.register_keras_serializable(package="keras_attention")
class AttachedMask(keras.layers.Layer):
    """The mask that `inputs` carries, and `default` where it carries none.

    Only a layer is told which mask a tensor carries, and only when it runs: an inner
    model attaches none while the outer one is built.

    Call arguments:
        inputs: Tensor (B, N, .). default: Boolean (B, N).

    Returns:
        Boolean (B, N), which carries no mask.
    """

    def __init__(self, **kwargs):
        super().__init__(**{"autocast": False, **kwargs})
        self.supports_masking = True
        self.built = True

    def call(self, inputs, default, inputs_mask=None):
        return default if inputs_mask is None else functions.as_mask(inputs_mask)

    def compute_mask(self, inputs, inputs_mask):
        return None
