"""Promises that every public layer keeps: a new layer is a new row of LAYERS."""

import doctest
import inspect
import json

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_attention
from keras_attention import (
    AttentionDecoder,
    BahdanauAttention,
    BaseAttention,
    BeamSearch,
    BiEncoder,
    GNMTPenalty,
    GreedySearch,
    LuongAttention,
    MaskedSoftmax,
    RandomSampling,
    Seq2Seq,
    functions,
)
from rows import D_Q, D_V, B, S, T, arrays, normal
from seq2seqs import library_seq2seq

pytestmark = pytest.mark.usefixtures("op_by_op")

QUERY, VALUE = (B, T, D_Q), (B, S, D_V)

# The layer with every argument off its default, and the shapes it is called with.
LAYERS = {
    "MaskedSoftmax": (lambda: MaskedSoftmax(axis=1, name="renamed"), [QUERY]),
    "BahdanauAttention": (
        lambda: BahdanauAttention(
            7,
            kernel_initializer="he_normal",
            kernel_regularizer=keras.regularizers.L2(0.1),
            dropout=0.2,
            seed=3,
            name="renamed",
        ),
        [QUERY, VALUE],
    ),
    "LuongAttention": (
        lambda: LuongAttention(
            "concat",
            units=9,
            num_heads=3,
            use_scale=True,
            kernel_initializer="he_normal",
            kernel_regularizer="l1",
            dropout=0.2,
            seed=3,
            name="renamed",
        ),
        [QUERY, VALUE],
    ),
    "BiEncoder": (
        lambda: BiEncoder(
            [layers.LSTM(5, dropout=0.1, seed=1), layers.GRU(7, reset_after=False)],
            merge_mode="sum",
            state_units=11,
            bridge="relu",
            name="renamed",
        ),
        [VALUE],
    ),
    "AttentionDecoder": (
        lambda: AttentionDecoder(
            [layers.LSTMCell(5, dropout=0.1), layers.GRUCell(7, recurrent_dropout=0.1)],
            BahdanauAttention(9, dropout=0.1),
            attend="after",
            attentional_units=13,
            input_feeding=True,
            name="renamed",
        ),
        [QUERY, VALUE],
    ),
}
EVERY = pytest.mark.parametrize("name", LAYERS)


def built(name):
    make, shapes = LAYERS[name]
    layer, inputs = make(), [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    return layer, inputs, layer(*inputs)


def test_the_table_holds_every_public_layer():
    public = {name: getattr(keras_attention, name) for name in keras_attention.__all__}
    found = {name for name, one in public.items() if issubclass(one, layers.Layer)}
    assert {*LAYERS, "BaseAttention", "Seq2Seq"} == found


@EVERY
def test_the_shapes_that_are_promised_are_the_shapes_that_come(name):
    layer, inputs, results = built(name)
    promised = layer.compute_output_shape(*[x.shape for x in inputs])
    flat = [promised] if isinstance(promised[0], int) else _flat_shapes(promised)
    assert flat == [tuple(one.shape) for one in keras.tree.flatten(results)]
    symbolic = make_symbolic(layer, inputs)
    assert len(symbolic) == len(flat)
    for one, shape in zip(symbolic, flat, strict=True):
        assert [size for size in one.shape if size is not None] == [
            size for size, at in zip(shape, one.shape, strict=True) if at is not None
        ]


def make_symbolic(layer, inputs):
    return keras.tree.flatten(layer(*[keras.Input((None, x.shape[-1])) for x in inputs]))


def _flat_shapes(shapes):
    if isinstance(shapes, tuple) and all(isinstance(size, int) for size in shapes):
        return [shapes]
    return [one for part in shapes for one in _flat_shapes(part)]


@EVERY
def test_the_config_is_json_and_makes_the_same_layer(name):
    layer, inputs, results = built(name)
    config = layer.get_config()
    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert json.dumps(again.get_config()) == json.dumps(config)
    assert again.name == "renamed"
    again(*inputs)
    again.set_weights(layer.get_weights())
    for one, want in zip(arrays(again(*inputs)), arrays(results), strict=True):
        np.testing.assert_array_equal(one, want)


@EVERY
def test_every_constructor_argument_is_an_attribute_and_in_the_config(name):
    layer, _, _ = built(name)
    wanted = [
        parameter
        for one in type(layer).__mro__
        if one.__module__.startswith("keras_attention") and "__init__" in vars(one)
        for parameter in inspect.signature(one.__init__).parameters
    ]
    for argument in set(wanted) - {"self", "kwargs"}:
        assert hasattr(layer, argument), argument
        assert argument in layer.get_config(), argument


@EVERY
def test_every_layer_inside_is_built_with_it(name):
    # Keras's JAX trainer compiles a model with an unbuilt layer anew at every step.
    layer, _, _ = built(name)
    for part in layer._flatten_layers():
        assert part.built, part.name


@EVERY
def test_what_stays_on_a_layer_is_no_tensor(name):
    layer, _, _ = built(name)
    weights = {id(v) for v in layer.variables}
    for part in layer._flatten_layers():
        for key, value in vars(part).items():
            for one in keras.tree.flatten(value):
                tensor = ops.is_tensor(one) or isinstance(one, (np.ndarray, keras.KerasTensor))
                assert not tensor or id(one) in weights, f"{part.name}.{key}"


@EVERY
def test_the_docstring_states_results_errors_and_paper_and_its_example_runs(name):
    of_a_paper = name != "MaskedSoftmax"
    check_docstring(getattr(keras_attention, name), *["Reference"] * of_a_paper)


@pytest.mark.parametrize("one", [BaseAttention, Seq2Seq])
def test_the_examples_of_template_and_model_run(one):
    check_docstring(one)


@pytest.mark.parametrize("search", [GreedySearch, BeamSearch, RandomSampling, GNMTPenalty])
def test_the_docstring_of_a_search_shows_how_to_use_it(search):
    check_docstring(search, sections=["Args:", "Example"], model=library_seq2seq())


def check_docstring(one, *more, sections=("Args:", "Returns:", "Raises:", "Example"), **names):
    text = inspect.getdoc(one)
    for section in (*sections, *more):
        assert section in text
    names |= {name: getattr(keras_attention, name) for name in keras_attention.__all__}
    names |= {"keras": keras, "ops": ops, "functions": functions}
    test = doctest.DocTestParser().get_doctest(text, names, one.__name__, None, 0)
    assert len(test.examples) >= 2
    assert doctest.DocTestRunner().run(test).failed == 0
