"""What `BaseAttention` promises to those who write an attention of their own."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_attention import (
    AttentionDecoder,
    BahdanauAttention,
    BaseAttention,
    BiEncoder,
    LuongAttention,
    Seq2Seq,
    functions,
)
from rows import B, S, T, arrays, normal
from seq2seqs import END, SOURCE, START

pytestmark = pytest.mark.usefixtures("op_by_op")


def test_a_new_attention_is_a_formula_and_works_in_a_decoder():
    class Distance(BaseAttention):
        """The nearest keys weigh most."""

        def compute_scores(self, query, keys):
            gap = ops.expand_dims(query, 2) - ops.expand_dims(keys, 1)
            return -functions.wide(ops.sum(ops.square(gap), axis=-1))

    value = normal(B, S, 6, seed=1)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    _, weights = Distance()(10 * value[:, :2], 10 * value, value_mask=mask)
    np.testing.assert_allclose(arrays(weights)[0], np.stack([np.eye(2, S)] * 2), atol=1e-5)
    decoder = AttentionDecoder(layers.GRUCell(6), Distance())
    outputs, _, _ = decoder(normal(B, T, 4), value, memory_mask=mask)
    assert tuple(outputs.shape) == (B, T, 6)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rows", [(T, S), (1, T, S), (B, 1, S), (B, T, 1), (B, 2, T, S)])
def test_scores_that_would_broadcast_are_refused(rows, masked):
    class Careless(BaseAttention):
        def compute_scores(self, query, keys):
            return ops.zeros(rows)

    query, value = normal(B, T, 5), normal(B, S, 6)
    mask = np.ones((B, S)) if masked else None
    layer = Careless()
    with pytest.raises(
        ValueError, match=r"^Careless .*`scores` should be \(B, T, S\).*Fix: one score"
    ):
        layer(query, value, value_mask=mask)


class Projected(BaseAttention):
    """A layer inside, and no `build`: Keras would build it at the first call."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.projection = layers.Dense(units)

    def project_keys(self, key):
        return self.projection(key)

    def compute_scores(self, query, keys):
        return functions.dot_scores(query, keys)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def model_of(attention):
    model = Seq2Seq(
        layers.Embedding(13, 5, mask_zero=True),
        BiEncoder(layers.GRU(6), state_units=7),
        layers.Embedding(11, 4, mask_zero=True),
        AttentionDecoder(layers.GRUCell(7), attention),
        layers.Dense(11),
        start_token=START,
        end_token=END,
    )
    model.run_eagerly = True
    return model


def test_layers_inside_are_built_with_the_model_saved_and_loaded(tmp_path):
    model = model_of(Projected(7))
    kernel, _ = model.decoder.attention.weights
    assert tuple(kernel.shape) == (12, 7)
    kernel.assign(normal(12, 7, seed=3))
    model.save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(
        tmp_path / "own.keras", custom_objects={"Projected": Projected}
    )
    target = np.array([[START, 3, 4]] * 3)
    both = [arrays(one((SOURCE, target)))[0] for one in (model, loaded)]
    np.testing.assert_allclose(*both, atol=1e-6)


def test_scores_of_widths_that_do_not_fit_fail_where_the_model_is_made():
    with pytest.raises(Exception, match="Projected 'projected.*D_q=7 and .*D_k=12"):
        model_of(Projected(8))


class Forgetful(BaseAttention):
    def __init__(self, temperature=1.0, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature


class ForgetfulLuong(LuongAttention):
    def __init__(self, score="dot", *, temperature=1.0, **kwargs):
        super().__init__(score, **kwargs)


class NothingToForget(BahdanauAttention):
    def __init__(self, units, dropout=0.1, **kwargs):
        super().__init__(units, dropout=dropout, **kwargs)


def test_arguments_that_a_saved_model_would_lose_are_named():
    for layer in (Forgetful(temperature=5.0), ForgetfulLuong(temperature=5.0)):
        with pytest.raises(NotImplementedError, match=r"but temperature would be lost.*Fix"):
            layer.get_config()
    for layer in (Projected(3), NothingToForget(3)):
        assert type(layer).from_config(layer.get_config()).units == 3
