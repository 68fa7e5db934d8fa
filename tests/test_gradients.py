"""Gradients in float64 against central differences, for inputs, states and every weight."""

import numpy as np
import pytest
from keras import Model, layers, ops

from gradients import input_gradients, weight_gradients
from keras_attention import AttentionDecoder, BiEncoder
from rows import (
    ATTENTIONS,
    CELLS,
    ORDERS,
    array,
    arrays,
    lengths_mask,
    needs_float64,
    normal,
    query_width,
)

pytestmark = [pytest.mark.usefixtures("op_by_op"), needs_float64]

STEP = 1e-6


def double(*shape, seed):
    return normal(*shape, seed=seed, dtype="float64")


def scalar(results):
    """A fixed random projection of everything the layer returns, cell by cell."""
    total = 0.0
    for index, one in enumerate(results):
        factors = double(*one.shape, seed=100 + index)
        total = total + ops.sum(one * ops.convert_to_tensor(factors))
    return total


def check(layer, call, inputs):
    """`call(*inputs)` is a flat list of tensors of `layer`; one random direction each."""
    call(*[ops.convert_to_tensor(x) for x in inputs])  # builds

    def evaluate(*values):
        return float(array(scalar(call(*[ops.convert_to_tensor(v) for v in values]))))

    def compare(gradient, above, below, direction):
        slope, predicted = (above - below) / (2 * STEP), (gradient * direction).sum()
        assert abs(slope - predicted) < 1e-6 * max(1.0, abs(slope))
        assert abs(slope) > 1e-9  # every input and weight matters

    gradients = input_gradients(lambda *x: scalar(call(*x)), *inputs)
    for index, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        direction = double(*x.shape, seed=200 + index)
        values = [
            [*inputs[:index], x + sign * STEP * direction, *inputs[index + 1 :]]
            for sign in (1, -1)
        ]
        compare(gradient, evaluate(*values[0]), evaluate(*values[1]), direction)

    tensors = [ops.convert_to_tensor(x) for x in inputs]
    gradients = weight_gradients(layer, lambda: scalar(call(*tensors)))
    for index, (weight, gradient) in enumerate(
        zip(layer.trainable_variables, gradients, strict=True)
    ):
        value, direction = array(weight), double(*weight.shape, seed=300 + index)
        found = []
        for sign in (1, -1):
            weight.assign(value + sign * STEP * direction)
            found.append(evaluate(*inputs))
        weight.assign(value)
        compare(gradient, *found, direction)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name):
    layer = ATTENTIONS[name](dtype="float64")
    masks = {
        "query_mask": lengths_mask([3, 2, 3], 3),
        "value_mask": lengths_mask([5, 2, 0], 5),
    }
    inputs = [double(3, 3, query_width(name), seed=0), double(3, 5, 6, seed=1)]
    check(layer, lambda q, v: layer(q, v, **masks), inputs)


@pytest.mark.parametrize(
    "order, cell, attention",
    [
        ("before", "stack", "bahdanau"),
        ("before_attentional", "gru", "heads"),
        ("after", "lstm", "concat"),
        ("feeding", "simple", "scaled"),
    ],
)
def test_decoder(order, cell, attention):
    layer = AttentionDecoder(
        CELLS[cell](), ATTENTIONS[attention](), dtype="float64", **ORDERS[order]
    )
    masks = {
        "inputs_mask": lengths_mask([3, 2, 3], 3),
        "memory_mask": lengths_mask([5, 2, 0], 5),
    }
    sizes = layer.state_size
    states = [double(3, size, seed=10 + i) for i, size in enumerate(sizes)]
    inputs = [double(3, 3, 4, seed=0), double(3, 5, 6, seed=1), *states]

    def call(x, memory, *state):
        outputs, weights, last = layer(x, memory, initial_state=list(state), **masks)
        return [outputs, weights, *last]

    check(layer, call, inputs)


@pytest.mark.parametrize("kind", [layers.GRU, layers.LSTM])
def test_encoder(kind):
    layer = BiEncoder([kind(3), kind(2)], state_units=4, dtype="float64")
    mask = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]])

    def call(x):
        memory, state = layer(x, mask=mask)
        return [memory, *state]

    check(layer, call, [double(3, 4, 5, seed=0)])


@pytest.mark.parametrize("order", ORDERS)
def test_every_weight_moves_in_one_step_of_gradient_descent(order):
    encoder = BiEncoder(layers.LSTM(7), state_units=7)
    decoder = AttentionDecoder(CELLS["lstm"](), ATTENTIONS["concat"](), **ORDERS[order])
    source, target = layers.Input((None, 3)), layers.Input((None, 4))
    memory, state = encoder(source)
    outputs, _, _ = decoder(target, memory, initial_state=state)
    model = Model([source, target], outputs)
    model.compile("sgd", "mse")
    before = arrays(model.trainable_variables)
    assert len(before) == len(model.weights)
    target_out = normal(2, 3, decoder.output_size, seed=2)
    model.train_on_batch([normal(2, 5, 3), normal(2, 3, 4, seed=1)], target_out)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert np.abs(array(variable) - old).max() > 0, variable.path
