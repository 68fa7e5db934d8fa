"""Token ids that a user gives: as NumPy arrays, checked before a graph reads them.

An embedding answers an id that it does not know with an error on one device and with
zeros on another.
"""

import numpy as np
from keras import ops


def is_dataset(source):
    """Whether only `predict` can read it: no array, no tensor, no rows of numbers."""
    return not hasattr(source, "shape") and not isinstance(source, (list, tuple))


def source_ids(source, size):
    """Int32 (B, S), each below `size` where that is known."""
    ids = _whole_numbers("source", source, "(B, S)")
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(
            f"Seq2Seq.generate: `source` should be ids (B, S), but received shape {ids.shape}. "
            "Fix: pass a batch of rows, for one row source[None]; S is 1 or more."
        )
    check_ids("Seq2Seq.generate", "source", ids, size)
    return ids.astype("int32")


def forced_ids(prefix, rows, model, max_length):
    """Int32 (B, L), the ids that outputs must have, -1 where they are free."""
    ids = _whole_numbers("prefix", prefix, "(P,) or (B, P)")
    if ids.ndim == 1:
        ids = np.tile(ids, (rows, 1))
    if ids.ndim != 2 or len(ids) != rows:
        raise ValueError(
            f"Seq2Seq.generate: `prefix` should be ids (P,), or (B, P) with B={rows}, but "
            f"received shape {ids.shape}. Fix: pass one row per row of `source`."
        )
    check_ids("Seq2Seq.generate", "prefix", ids, model.vocabulary)
    if ids.shape[1] >= max_length:
        raise ValueError(
            "Seq2Seq.generate: `prefix` should be shorter than max_length, which counts the "
            f"end token, but received P={ids.shape[1]} and max_length={max_length}. "
            f"Fix: max_length={ids.shape[1] + 1} or more."
        )
    free = ids == model.pad_token
    ends = ~free & (ids == model.end_token)
    starts = (ids[:, :1] == model.start_token) & (model.start_token != model.end_token)
    if ends.any() or starts.any() or (free[:, :-1] & ~free[:, 1:]).any():
        raise ValueError(
            "Seq2Seq.generate: `prefix` should have no start token in front (it is fed "
            "anyway), no end token, and padding on the right only, but received "
            f"{np.array2string(ids, threshold=20)}. Fix: pass the first tokens of the output "
            "alone, without start and end token."
        )
    forced = np.full((rows, max_length), -1, "int32")
    forced[:, : ids.shape[1]] = np.where(free, -1, ids)
    return forced


def check_ids(owner, name, ids, size):
    """All from 0 up to, not including, `size`; None if that is not known."""
    ids = np.asarray(ids)
    wrong = ids[(ids < 0) | (ids >= (np.inf if size is None else size))]
    if wrong.size:
        upper = "up" if size is None else f"to {size - 1}, the vocabulary's last"
        raise ValueError(
            f"{owner}: `{name}` should be ids from 0 {upper}, but received {wrong.flat[0]}. "
            "Fix: encode with the vocabulary that the embedding and the output layer "
            "were made for."
        )


def _whole_numbers(name, rows, symbols):
    if hasattr(rows, "to_tensor"):
        raise TypeError(
            f"Seq2Seq.generate: `{name}` should be a dense tensor, but received a "
            f"{type(rows).__name__}. Fix: pass {name}.to_tensor(), padded with `pad_token`."
        )
    try:
        ids = (
            np.asarray(rows) if isinstance(rows, (list, tuple)) else ops.convert_to_numpy(rows)
        )
    except ValueError:  # rows of different lengths
        ids = None
    if ids is None or not (np.issubdtype(ids.dtype, np.integer) or ids.size == 0):
        received = "rows of different lengths" if ids is None else f"dtype {ids.dtype}"
        raise ValueError(
            f"Seq2Seq.generate: `{name}` should be integer ids {symbols}, but received "
            f"{received}. Fix: keras.utils.pad_sequences(rows, padding='post'), and "
            "whole numbers."
        )
    return ids.astype("int64")


def vocabulary_size(embedding):
    """How many ids an embedding knows, if it says so."""
    return getattr(embedding, "input_dim", None)
