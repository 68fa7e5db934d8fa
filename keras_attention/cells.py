"""What a decoder needs to know about Keras's recurrent cells, one or a stack of them.

States are a flat list of tensors (B, U) everywhere in this package; only here do they
take the nested form that a stack of cells wants.
"""

import contextlib
import inspect

import keras
from keras import ops

FAST_LAYERS = {
    keras.layers.GRUCell: keras.layers.GRU,
    keras.layers.LSTMCell: keras.layers.LSTM,
    keras.layers.SimpleRNNCell: keras.layers.SimpleRNN,
}


def single_cells(cell):
    """The cells of a stack from the input up, or the one cell, as a list."""
    return list(cell.cells) if hasattr(cell, "cells") else [cell]


def state_sizes(cell):
    """A flat list with the width of each state."""
    return keras.tree.flatten(cell.state_size)


def output_size(cell):
    size = getattr(cell, "output_size", None)
    return size if size is not None else state_sizes(cell)[0]


def query_index(cell):
    """Where the top cell's first state (of an LSTM its h) stands in the flat list."""
    return sum(len(state_sizes(one)) for one in single_cells(cell)[:-1])


def nested(cell, flat):
    """The flat list of states in the cell's own structure."""

    def plain(size):
        return [plain(one) for one in size] if isinstance(size, (list, tuple)) else size

    size = plain(cell.state_size)
    return keras.tree.pack_sequence_as(size if isinstance(size, list) else [size], flat)


def run(cell, inputs, flat, training):
    """One step: the output (B, .), and the flat list of new states."""
    accepted = inspect.signature(cell.call).parameters
    kwargs = {"training": training} if "training" in accepted else {}
    output, states = cell(inputs, nested(cell, flat), **kwargs)
    return output, keras.tree.flatten(states)


def whole_sequence(cell):
    """The recurrent layer that runs this very `cell`: Keras's fast one where there is one.

    None for a stack of one, or with a cell that is not Keras's own: `RNN` with a mask
    mistakes the nesting of its states.
    """
    if hasattr(cell, "cells"):
        own = all(type(one) in FAST_LAYERS for one in cell.cells)
        if len(cell.cells) == 1 or not own:
            return None
    settings = {
        "return_sequences": True,
        "return_state": True,
        "dtype": cell.dtype_policy,
        "name": f"{cell.name}_sequence",
    }
    fast = FAST_LAYERS.get(type(cell))
    if fast is None:
        return keras.layers.RNN(cell, **settings)
    undropped = {"dropout": 0.0, "recurrent_dropout": 0.0}
    layer = fast.from_config({**cell.get_config(), **undropped, **settings})
    # Keras goes on tracking the cell that is replaced here. Without dropout it has no
    # random state, and as "built" it has no weights to make and stops no `quantize`.
    layer.cell.built = True
    layer.cell = cell
    return layer


@contextlib.contextmanager
def drawn_dropout(cell, batch, width, training):
    """Draws the dropout masks of Keras's cells before a loop, and drops them after it.

    `keras.layers.RNN` does this for the cells it holds itself. Drawn inside the loop,
    they would be new at each step or, on JAX, leak from it.
    """
    holders = [one for one in single_cells(cell) if hasattr(one, "reset_dropout_mask")]
    if not training or not holders:
        yield
        return
    for one in single_cells(cell):
        if one in holders:
            ones = ops.ones((batch, width), one.compute_dtype)
            one.get_dropout_mask(ones)
            ones = ops.ones((batch, state_sizes(one)[0]), one.compute_dtype)
            one.get_recurrent_dropout_mask(ones)
        width = output_size(one)
    try:
        yield
    finally:
        for one in holders:
            one.reset_dropout_mask()
            one.reset_recurrent_dropout_mask()
