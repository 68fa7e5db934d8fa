"""What `BaseAttention` promises to those who write an attention of their own."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_attention import (
    AttentionDecoder,
    BahdanauAttention,
    BaseAttention,
    BeamSearch,
    GreedySearch,
    LuongAttention,
    functions,
)
from rows import B, S, T, array, arrays, normal
from seq2seqs import LENGTH, SOURCE, START, library_seq2seq, teacher_forced

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


HEADS = {1: (), 2: (2,)}


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("shape", [(T, S), (1, T, S), (B, 1, S), (B, T, 1), (B, 5, T, S)])
def test_scores_that_would_broadcast_are_refused(shape, heads):
    class Careless(BaseAttention):
        num_heads = heads

        def compute_scores(self, query, keys):
            batch, steps = shape[:-2], shape[-2:]
            return ops.zeros((*batch, *(HEADS[heads] if batch else ()), *steps))

    query, value, state = normal(B, T, 5), normal(B, S, 6), normal(B, 7)
    symbols = {1: r"\(B, T, S\)", 2: r"\(B, H, T, S\)"}[heads]
    message = f"Careless .*`scores` should be {symbols}.*Fix: sum over the last axis"
    for mask in (None, np.ones((B, S))):
        with pytest.raises(ValueError, match=message):
            Careless()(query, value, value_mask=mask)
    decoder = AttentionDecoder(layers.GRUCell(7), Careless())
    with pytest.raises(ValueError, match=message):
        decoder(query, value, initial_state=state)


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


class ProjectedAndScaled(Projected):
    """A `build` that makes a weight and forgets the layer."""

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def compute_scores(self, query, keys):
        return self.scale * super().compute_scores(query, keys)


class ProjectedLuong(LuongAttention):
    """Keys through one layer more."""

    def __init__(self, **kwargs):
        super().__init__("general", **kwargs)
        self.projection = layers.Dense(12)

    def project_keys(self, key):
        return super().project_keys(self.projection(key))

    def get_config(self):
        return {key: value for key, value in super().get_config().items() if key != "score"}


OWN = {
    "no build": (lambda: Projected(7), 2),
    "a build for something else": (lambda: ProjectedAndScaled(7), 3),
    "of one that is here": (ProjectedLuong, 3),
}
CLASSES = {one.__name__: one for one in (Projected, ProjectedAndScaled, ProjectedLuong)}


def model_of(attention):
    model = library_seq2seq(attention)
    model.run_eagerly = True
    return model


@pytest.mark.parametrize("kind", OWN)
def test_layers_inside_are_built_with_the_model_saved_and_loaded(kind, tmp_path):
    make, weights = OWN[kind]
    model = model_of(make())
    attention = model.decoder.attention
    assert len(attention.weights) == weights
    attention.projection.kernel.assign(normal(*attention.projection.kernel.shape, seed=3))
    model.save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(tmp_path / "own.keras", custom_objects=CLASSES)
    target = np.array([[START, 3, 4]] * 3)
    both = [array(one((SOURCE, target))) for one in (model, loaded)]
    np.testing.assert_allclose(*both, atol=1e-6)


@pytest.mark.parametrize(
    "search", [GreedySearch(), BeamSearch(3, coverage_penalty=0.1)], ids=str
)
def test_one_generates_with_the_weights_of_the_whole_model(search):
    model = model_of(ProjectedAndScaled(7))
    found = model.generate(SOURCE, search, LENGTH, verbose=0)
    _, weights = teacher_forced(model, SOURCE, found.tokens)
    for row, length in enumerate(found.lengths):
        np.testing.assert_allclose(
            found.weights[row, :length], weights[row, :length], atol=1e-5
        )


def test_scores_of_widths_that_do_not_fit_fail_where_the_model_is_made():
    # Of which type, each backend decides.
    with pytest.raises(
        Exception, match="Projected 'projected.*D_q=7 and a key of width D_k=12"
    ):
        model_of(Projected(8))
    layer = Projected(8)
    with pytest.raises(Exception, match="D_q=7"):
        layer(normal(B, T, 7), normal(B, S, 6))
    layer(normal(B, T, 8), normal(B, S, 6))  # it was not built for the widths that failed


class Forgetful(BaseAttention):
    def __init__(self, temperature=1.0, floor=0.0, **kwargs):
        super().__init__(**kwargs)
        self.temperature, self.floor = temperature, floor


class ForgetfulLuong(LuongAttention):
    def __init__(self, score="dot", *, temperature=1.0, floor=0.0, **kwargs):
        super().__init__(score, **kwargs)


class NothingToForget(BahdanauAttention):
    def __init__(self, units, dropout=0.1, **kwargs):
        super().__init__(units, dropout=dropout, **kwargs)


class ForgetfulHeir(Forgetful):
    """Its parent has the arguments, and forgets them too."""

    def __init__(self, temperature=2.0, floor=0.0, **kwargs):
        super().__init__(temperature, floor, **kwargs)


class Remembers:
    def get_config(self):
        return {**super().get_config(), "units": self.units}


class RemembersByAMixin(Remembers, BaseAttention):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units


@pytest.mark.parametrize("cls", [Forgetful, ForgetfulLuong, ForgetfulHeir])
def test_arguments_that_a_saved_model_would_lose_are_named(cls):
    with pytest.raises(NotImplementedError, match="temperature, floor would be lost") as it:
        cls(temperature=5.0).get_config()
    assert "'temperature': self.temperature, 'floor': self.floor}" in str(it.value)


@pytest.mark.parametrize("cls", [Projected, NothingToForget, RemembersByAMixin])
def test_where_no_argument_is_lost_there_is_nothing_to_say(cls):
    assert cls.from_config(cls(3).get_config()).units == 3


class Particular(BaseAttention):
    """A weight in `__init__`, lengths and values in Python: good where these are known."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.gain = self.add_weight(name="gain", shape=(6,), initializer="ones")

    def compute_scores(self, query, keys):
        scores = functions.dot_scores(query * self.gain, keys)
        assert ops.convert_to_numpy(scores).max() < 100
        return scores + ops.zeros((query.shape[1], keys.shape[1]))


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_what_only_a_real_call_can_do_is_not_asked_of_a_symbolic_one(dtype):
    query, value = normal(B, T, 6), normal(B, S, 6)
    layer = Particular(dtype=dtype)
    assert tuple(layer(query, value)[1].shape) == (B, T, S)
    decoder = AttentionDecoder(layers.GRUCell(6), Particular(), attend="after")
    assert tuple(decoder(query, value)[1].shape) == (B, T, S)
