"""Checks of arguments and shapes, with errors that say what to do.

Every error has the same four parts: the tensor, what was expected (in B, T, S, D_q,
D_v, U), what came, and a one-line fix. A size that is not known yet (None) passes.
"""

import inspect
import math
import numbers

import keras

IN_A_DECODER = "In a decoder the query is the cell's state; value and key are the memory."


def fail(layer, tensor, expected, received, fix):
    raise ValueError(
        f"{type(layer).__name__} '{layer.name}': `{tensor}` should be {expected}, "
        f"but received {received}. Fix: {fix}"
    )


def positive_int(owner, name, value):
    fix = f"pass {name}=1 or more."
    return _integer(owner, name, value, 1, "a positive integer", fix)


def count(owner, name, value, fix="pass 0 to switch it off."):
    return _integer(owner, name, value, 0, "an integer from 0 up", fix)


def token_id(owner, name, value):
    fix = "pass the id that the token has in the vocabulary."
    return _integer(owner, name, value, 0, "a token id, an integer from 0 up", fix)


def _integer(owner, name, value, least, expected, fix):
    """`value` as an int, for any integer type (NumPy's too)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(
            f"{owner}: `{name}` should be {expected}, but received {name}={value!r}. Fix: {fix}"
        )
    return int(value)


def number(owner, name, value, *, above=None, least=None, most=math.inf):
    """`value` as a finite float greater than `above`, or from `least` up; at most `most`."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    low_enough = is_number and value <= most and value < math.inf
    if not low_enough or (value <= above if least is None else value < least):
        lower = f"from {least} up" if above is None else f"above {above}"
        upper = "" if most == math.inf else f" and at most {most}"
        raise ValueError(
            f"{owner}: `{name}` should be a number {lower}{upper}, but received "
            f"{name}={value!r}. Fix: pass {name}=1.0, for example."
        )
    return float(value)


def check_choice(owner, name, value, choices):
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"{owner}: `{name}` should be one of {listed}, but received "
            f"{name}={value!r}. Fix: choose one of these."
        )


def check_rate(owner, name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(
            f"{owner}: `{name}` should be a number from 0 up to, not including, 1, but "
            f"received {name}={value!r}. Fix: pass the share to drop, for example 0.1."
        )


def check_tensors(layer, **tensors):
    """Each is one dense tensor."""
    for name, tensor in tensors.items():
        if isinstance(tensor, (list, tuple)):
            _refuse_several(layer, name, len(tensor))
        if hasattr(tensor, "to_tensor") and hasattr(tensor, "row_splits"):
            raise TypeError(
                f"{type(layer).__name__} '{layer.name}': `{name}` should be a dense "
                f"tensor, but received a {type(tensor).__name__}. Fix: pass "
                f"{name}.to_tensor() and a mask of the real steps, for example "
                "tf.sequence_mask(x.row_lengths())."
            )


def check_float(layer, **tensors):
    for name, tensor in tensors.items():
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if not keras.backend.is_float_dtype(dtype):
            fail(
                layer,
                name,
                "a float tensor",
                f"dtype {dtype}, shape {as_shape(tensor.shape)}",
                "embed integer ids first: Embedding(vocabulary, width)(ids).",
            )


def as_shape(shape):
    """A tuple of sizes, None where one is unknown; None itself stays None."""
    return None if shape is None else tuple(shape)


def check_rank(layer, tensor, shape, *symbols, fix):
    """`symbols` are the layouts allowed, for example "(B, T, D_q)"."""
    if any(isinstance(size, (list, tuple)) for size in shape):
        _refuse_several(layer, tensor, len(shape))
    if len(shape) not in [symbol.count(",") + 1 for symbol in symbols]:
        fail(layer, tensor, " or ".join(symbols), f"shape {as_shape(shape)}", fix)


def check_steps(layer, tensor, shape):
    """Of no steps at all the backends make different errors. Only a known size is checked."""
    if shape[1] == 0:
        expected, fix = "of one step or more", "pad it to one step, and mask that."
        fail(layer, tensor, expected, f"shape {as_shape(shape)}", fix)


def check_width(layer, tensor, shape, symbol, width, why, fix):
    """The last size is `width`; `symbol` names it and `why` says where that comes from."""
    if None not in (shape[-1], width) and shape[-1] != width:
        expected = f"of last size {symbol}={width} ({why})"
        fail(layer, tensor, expected, f"shape {as_shape(shape)}", fix)


def check_known_width(layer, tensor, shape):
    if shape[-1] is None:
        fail(
            layer,
            tensor,
            "of a last size that is known when the layer is built",
            f"shape {as_shape(shape)}",
            "embed integer ids first; or state the number of features: Input((None, 16)).",
        )


def check_batch(layer, tensor, shape, other, other_shape):
    if None not in (shape[0], other_shape[0]) and shape[0] != other_shape[0]:
        fail(
            layer,
            tensor,
            f"of the same batch as `{other}`, B={other_shape[0]}",
            f"shape {as_shape(shape)} against {as_shape(other_shape)}",
            f"pass one row per row of `{other}`; nothing is broadcast, so repeat a "
            f"shared row with ops.repeat(x, {other_shape[0]}, axis=0).",
        )


def check_multiple(layer, tensor, shape, other, other_shape):
    if None not in (shape[0], other_shape[0]) and shape[0] % other_shape[0]:
        fail(
            layer,
            tensor,
            f"of as many rows as `{other}`, B={other_shape[0]}, or a multiple",
            f"shape {as_shape(shape)} against {as_shape(other_shape)}",
            f"pass one row per row of `{other}`, or K of each with ops.repeat(x, K, axis=0).",
        )


def check_mask(layer, tensor, shape, *allowed):
    """`allowed` are pairs of symbol and sizes, such as ("(B, S)", (2, 5))."""
    if any(_agree(shape, sizes) for _, sizes in allowed):
        return
    expected = " or ".join(f"{symbol} = {sizes}" for symbol, sizes in allowed)
    fail(
        layer,
        tensor,
        expected,
        f"shape {as_shape(shape)}",
        "one entry per step, True where the step is real, for example ops.not_equal(ids, 0).",
    )


def check_source_mask(layer, tensor, mask, batch, target_steps, source_steps):
    """One entry per source step, or one per source step and target step."""
    check_mask(
        layer,
        tensor,
        mask.shape,
        ("(B, S)", (batch, source_steps)),
        ("(B, T, S)", (batch, target_steps, source_steps)),
    )


def flat_shapes(shapes):
    """The shapes in any nesting of them, as a flat list of tuples."""
    if all(size is None or isinstance(size, int) for size in shapes):
        return [tuple(shapes)]
    return [one for part in shapes for one in flat_shapes(part)]


def check_states(layer, tensor, shapes, sizes, counts, other, other_shape):
    """One shape (B, U) for each of `sizes`; `counts` says how many there may be."""
    if len(shapes) not in counts:
        few = "for a stack on one encoder state, repeat it: initial_state=state * 2."
        many = "the two directions of a Bidirectional layer BiEncoder makes one."
        fail(
            layer,
            tensor,
            f"a list of {' or '.join(map(str, counts))} tensors (B, U), of sizes {sizes}",
            f"{len(shapes)} of shapes {shapes}",
            "pass one tensor per state of every cell; "
            + (few if len(shapes) < max(counts) else many),
        )
    for index, (shape, size) in enumerate(zip(shapes, sizes, strict=False)):
        name = f"{tensor}[{index}]"
        check_rank(layer, name, shape, "(B, U)", fix="pass one row per batch row.")
        why, fix = "the cell's state size", "project it, as BiEncoder(state_units=...) does."
        check_width(layer, name, shape, "U", size, why, fix)
        check_batch(layer, name, shape, other, other_shape)


def check_broadcast(layer, tensor, shape, other, other_shape):
    """`shape` broadcasts to `other_shape` by NumPy's rule, without widening it."""
    pairs = list(zip(reversed(shape), reversed(other_shape), strict=False))
    fits = all(size in (None, 1, wanted) or wanted is None for size, wanted in pairs)
    if len(shape) > len(other_shape) or not fits:
        fail(
            layer,
            tensor,
            f"broadcastable to `{other}`, shape {as_shape(other_shape)}",
            f"shape {as_shape(shape)}",
            "insert the missing axes, for example mask[:, None, :]; a mask attached to "
            f"`{other}` arrives here by itself.",
        )


def check_scores(layer, shape, wanted):
    """What a subclass computed; of another shape it would broadcast, with mask or value."""
    if getattr(shape, "rank", len(wanted)) is None:  # TensorFlow does not know it
        return
    if not _agree(shape, wanted):
        symbols = "(B, T, S)" if len(wanted) == 3 else "(B, H, T, S)"
        fail(
            layer,
            "scores",
            f"{symbols}={wanted} from `compute_scores`",
            f"shape {as_shape(shape)}",
            "sum over the last axis of queries and keys and over no other, as "
            "functions.dot_scores(query, keys) does; after a Dense(1), scores[..., 0].",
        )


def _agree(shape, sizes):
    """Of the same rank and sizes; one that is not known agrees with any."""
    same_rank = len(shape) == len(sizes)
    return same_rank and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, sizes, strict=True)
    )


def _refuse_several(layer, tensor, count):
    fix = "unpack what the layer before returned, as in memory, state = encoder(x)."
    fail(layer, tensor, "one tensor", f"a list or tuple of {count}", fix)


def check_config(layer, base):
    """Refuses to lose arguments of `__init__` in a saved model, as Keras does.

    Keras does not where a `get_config` is inherited, as from `base`. One that is not of this
    package is trusted.
    """
    owner = next(one for one in type(layer).__mro__ if "get_config" in vars(one))
    if owner.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return
    ours = [one for one in owner.__mro__ if issubclass(one, base)]
    known = {name for one in ours for name in _arguments(one)}
    lost = [name for name in _arguments(type(layer)) if name not in known]
    if lost:
        added = ", ".join(f"'{name}': self.{name}" for name in lost)
        raise NotImplementedError(
            f"{type(layer).__name__} '{layer.name}': `get_config` should return every argument "
            f"of `__init__`, but in a saved model {', '.join(lost)} would be lost. Fix: keep "
            "each on self, and def get_config(self): return {**super().get_config(), "
            f"{added}}}."
        )


def _arguments(cls):
    of_layers = {"self", "name", "dtype", "trainable", "activity_regularizer", "autocast"}
    parameters = inspect.signature(cls.__init__).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return [one.name for one in named if one.name not in of_layers]
