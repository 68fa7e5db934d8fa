"""MaskedSoftmax and the pure functions, against closed forms and the reference."""

import keras
import numpy as np
import pytest
from keras import ops

import reference
from gradients import input_gradients
from keras_attention import LuongAttention, MaskedSoftmax, functions
from rows import array, normal

pytestmark = pytest.mark.usefixtures("op_by_op")

E = np.e


@pytest.mark.parametrize("dtype, low", [("float32", -2e9), ("float16", -4e4)])
def test_equal_scores_however_low_share_the_weight(dtype, low):
    scores = np.full((1, 3), low, dtype)
    weights = MaskedSoftmax(dtype=dtype)(scores, mask=np.array([[1, 1, 0]]))
    assert keras.backend.standardize_dtype(weights.dtype) == dtype
    np.testing.assert_array_equal(array(weights), [[0.5, 0.5, 0.0]])


@pytest.mark.parametrize("masked", [1e4, np.nan, np.inf, -np.inf, 3e38])
def test_what_stands_in_a_masked_entry_never_matters(masked):
    scores, mask = np.array([[0.0, 1.0, masked]], "float32"), np.array([[1, 1, 0]])
    expected = [[1 / (1 + E), E / (1 + E), 0.0]]
    np.testing.assert_allclose(array(MaskedSoftmax()(scores, mask=mask)), expected, rtol=1e-6)
    (gradient,) = input_gradients(lambda s: MaskedSoftmax()(s, mask=mask)[0, 0], scores)
    slope = E / (1 + E) ** 2
    np.testing.assert_allclose(gradient, [[slope, -slope, 0.0]], rtol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [
        np.array([[True, True, False]]),
        np.array([[1, 1, 0]], "int32"),
        np.array([[2, -1, 0]], "int32"),
        np.array([[1.0, 1.0, 0.0]], "float32"),
        np.array([[1 - 1e-6, 1 - 1e-6, 1e-6]], "float32"),
    ],
    ids=["bool", "int32", "nonzero", "float32", "nearly"],
)
def test_masks_of_any_dtype_agree(mask):
    weights = MaskedSoftmax()(np.array([[0.0, 1.0, 1e4]], "float32"), mask=mask)
    np.testing.assert_allclose(array(weights), [[1 / (1 + E), E / (1 + E), 0.0]], rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_every_axis_equals_the_reference(axis):
    scores, mask = normal(2, 3, 5), normal(2, 3, 5, seed=1) > 0
    mask[0] = mask[:, 1] = mask[:, :, 2] = False
    expected = np.zeros(scores.shape)
    moved = np.moveaxis(expected, axis, -1)
    for index in np.ndindex(*moved.shape[:-1]):
        moved[index] = reference.masked_softmax(
            np.moveaxis(scores.astype("float64"), axis, -1)[index],
            np.moveaxis(mask, axis, -1)[index],
        )
    weights = array(MaskedSoftmax(axis=axis)(scores, mask=mask))
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    assert (weights[~mask] == 0).all()


def test_a_mask_broadcasts_as_in_numpy():
    scores, mask = normal(2, 3, 5), np.array([1, 0, 1, 1, 0], bool)
    whole = np.broadcast_to(mask, scores.shape)
    for given in (mask, mask[None], mask[None, None]):
        weights = array(MaskedSoftmax()(scores, mask=given))
        np.testing.assert_array_equal(weights, array(MaskedSoftmax()(scores, mask=whole)))


@pytest.mark.parametrize("score", [-36.0, 0.0, 36.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_empty_row_is_zero_and_leaves_the_other_alone(dtype, score):
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    scores = np.full((2, 3), score)
    weights = array(MaskedSoftmax(dtype=dtype)(ops.cast(scores, dtype), mask=mask))
    np.testing.assert_array_equal(weights, [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    (gradient,) = input_gradients(
        lambda s: ops.sum(MaskedSoftmax(dtype="float32")(s, mask=mask)[:, 0]),
        scores.astype("float32"),
    )
    np.testing.assert_allclose(gradient, [[0.25, -0.25, 0.0], [0.0, 0.0, 0.0]], atol=1e-7)


def test_a_float32_score_beyond_float16_survives_a_float16_layer():
    weights = MaskedSoftmax(dtype="mixed_float16")(np.array([[1e5, 1e5, 0.0]], "float32"))
    np.testing.assert_array_equal(array(weights), [[0.5, 0.5, 0.0]])
    assert keras.backend.standardize_dtype(weights.dtype) == "float16"


def test_float16_scores_are_summed_in_float32():
    for steps in (2, 4096):
        ones = np.full((1, steps, 512), 30.0, "float16")
        _, weights = LuongAttention("dot", dtype="float16")(ones[:, :1], ones)
        weights = array(weights)
        assert abs(weights.sum() - 1) < 1e-2
        np.testing.assert_allclose(weights, np.full((1, 1, steps), 1 / steps), rtol=1e-3)


def test_splitting_into_heads_takes_groups_of_columns_and_merging_undoes_it():
    x = normal(2, 5, 6)
    heads = functions.split_heads(ops.convert_to_tensor(x), 3)
    for head in range(3):
        np.testing.assert_array_equal(heads[:, head], x[:, :, 2 * head : 2 * head + 2])
    np.testing.assert_array_equal(functions.merge_heads(heads), x)
