"""Searches: how a decoder's next-token probabilities become an output sequence.

Sizes: B batch, K hypotheses of each row, N rows that are decoded together (B, or B*K),
L `max_length`, S source steps, H heads, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import keras
from keras import ops

from keras_attention import checks, functions

IMPOSSIBLE = -math.inf
COLDEST, HOTTEST = 1e-6, 1e6  # temperatures beyond these draw the same


class Task(NamedTuple):
    """What a search is to do. Its graph is built once; every tensor may be symbolic.

    step: The model, `step(tokens (N,), state) -> log_probs (N, V), weights (N, S) or
        (N, H, S), state`; all but the state in float32.
    state: List of tensors (B, .), the first state of the decoder.
    real: Boolean (B, S), the source steps that are not padding.
    weights_shape: What follows N in the weights' shape.
    uniform: `uniform(shape)` draws float32 numbers from [0, 1).
    forced: int32 (N, L), the id that each output must have there, -1 where it is free;
        or None.
    """

    step: object
    state: list
    real: object
    weights_shape: tuple
    uniform: object
    forced: object
    start_token: int
    end_token: int
    pad_token: int
    max_length: int


class Found(NamedTuple):
    """tokens (B, L), lengths (B,), scores (B,), weights (B, L, S) or (B, H, L, S).

    With n-best results, an axis of that size after B.
    """

    tokens: object
    lengths: object
    scores: object
    weights: object


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What all searches share: the rules on which tokens may come next.

    From the strongest: a forced prefix; the end token as the last of `max_length`; then
    those below. Padding is never chosen. Where they leave no token, the end token comes.

    Args:
        min_length: Integer, the fewest tokens of an output, its end token counted.
        banned_tokens: Ids that an output may not have.
        no_repeat_ngram: Integer n: no n tokens in a row occur twice. 0 allows it.
    """

    min_length: int = 0
    banned_tokens: tuple = ()
    no_repeat_ngram: int = 0

    def __post_init__(self):
        owner = type(self).__name__
        for name in ("min_length", "no_repeat_ngram"):
            self._store(name, checks.count(owner, name, getattr(self, name)))
        banned = self.banned_tokens
        banned = banned if isinstance(banned, Iterable) else [banned]
        banned = [checks.token_id(owner, "banned_tokens", one) for one in banned]
        self._store("banned_tokens", tuple(banned))

    def run(self, task):
        """Searches, as a loop inside one graph. Returns `Found`."""
        raise NotImplementedError(f"{type(self).__name__} should define run(task).")

    def allowed(self, log_probs, tokens, position, task):
        """`log_probs` (N, V), minus infinity where a rule forbids the token.

        tokens: int32 (N, L), what was chosen before `position`, a scalar int32 tensor.
        """
        vocabulary = ops.arange(log_probs.shape[-1], dtype="int32")
        is_end = ops.equal(vocabulary, task.end_token)
        keep = ops.logical_or(is_end, ops.not_equal(vocabulary, task.pad_token))
        for token in self.banned_tokens:
            keep = ops.logical_and(keep, ops.not_equal(vocabulary, token))
        may_end = ops.greater_equal(position + 1, self.min_length)
        keep = ops.logical_and(keep, ops.logical_or(may_end, ops.logical_not(is_end)))
        keep = ops.expand_dims(keep, 0)
        if 0 < self.no_repeat_ngram <= task.max_length:
            repeats = self._repeats(tokens, position, log_probs)
            keep = ops.logical_and(keep, ops.logical_not(repeats))
        nothing = ops.logical_not(ops.any(keep, axis=-1, keepdims=True))
        keep = ops.logical_or(keep, ops.logical_and(nothing, is_end))
        keep = ops.where(ops.equal(position, task.max_length - 1), is_end, keep)
        if task.forced is not None:
            token = ops.expand_dims(at(task.forced, position), 1)
            keep = ops.where(token < 0, keep, ops.equal(vocabulary, token))
        return ops.where(keep, log_probs, IMPOSSIBLE)

    def _store(self, name, value):
        """Sets a checked field of this frozen class; NumPy's numbers become Python's."""
        object.__setattr__(self, name, value)

    def _repeats(self, tokens, position, log_probs):
        """Boolean (N, V): the tokens that would end an n-gram that there is already."""
        n, length = self.no_repeat_ngram, tokens.shape[1]
        windows = length - n + 1
        # Window i is tokens[i : i + n]; it is there once its last token is chosen.
        matches = ops.arange(windows, dtype="int32") + n - 1 < position
        matches = ops.logical_and(matches, ops.ones_like(tokens[:, :windows], dtype="bool"))
        for offset in range(n - 1):
            latest = ops.maximum(position - (n - 1) + offset, 0)
            latest = ops.expand_dims(at(tokens, latest), 1)
            window = tokens[:, offset : offset + windows]
            matches = ops.logical_and(matches, ops.equal(window, latest))
        # What does not match goes to a column of its own, which is cut off.
        size = log_probs.shape[-1]
        ends = ops.where(matches, ops.clip(tokens[:, n - 1 :], 0, size), size)  # (N, windows)
        rows = ops.expand_dims(ops.arange(ops.shape(tokens)[0], dtype="int32"), 1)
        places = ops.stack([ops.broadcast_to(rows, ops.shape(ends)), ends], axis=-1)
        places = ops.reshape(places, (-1, 2))
        banned = ops.zeros((ops.shape(tokens)[0], size + 1), "int32")
        return ops.scatter_update(banned, places, ops.ones_like(places[:, 0]))[:, :-1] > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneByOne(Search):
    """A search with one hypothesis: a subclass says which token comes next."""

    draws = False

    def choose(self, log_probs, uniform):
        """The next token, int32 (B,), from what is allowed, (B, V).

        uniform: (B,), random numbers from [0, 1), for a search that `draws`.
        """
        raise NotImplementedError(f"{type(self).__name__} should define choose(log_probs).")

    def run(self, task):
        batch, length = ops.shape(task.state[0])[0], task.max_length
        uniform = task.uniform((batch, length)) if self.draws else None

        def unfinished(position, last, done, *_):
            return ops.logical_and(position < length, ops.any(ops.logical_not(done)))

        def advance(position, last, done, tokens, lengths, scores, weights, state):
            log_probs, step_weights, state = task.step(last, state)
            candidates = self.allowed(log_probs, tokens, position, task)
            number = None if uniform is None else at(uniform, position)
            chosen = self.choose(candidates, number)
            gain = ops.take_along_axis(log_probs, ops.expand_dims(chosen, 1), axis=1)[:, 0]
            scores = scores + ops.where(done, ops.zeros_like(gain), gain)
            written = ops.where(done, ops.full_like(chosen, task.pad_token), chosen)
            tokens = write(tokens, position, written)
            step_weights = ops.where(
                ops.reshape(done, (-1, *[1] * len(task.weights_shape))),
                ops.zeros_like(step_weights),
                step_weights,
            )
            weights = write(weights, position, step_weights)
            lengths = lengths + ops.cast(ops.logical_not(done), "int32")
            done = ops.logical_or(done, ops.equal(chosen, task.end_token))
            return position + 1, chosen, done, tokens, lengths, scores, weights, state

        start = (
            ops.zeros((), "int32"),
            ops.full((batch,), task.start_token, "int32"),
            ops.zeros((batch,), "bool"),
            ops.full((batch, length), task.pad_token, "int32"),
            ops.zeros((batch,), "int32"),
            ops.zeros((batch,), "float32"),
            ops.zeros((batch, length, *task.weights_shape), "float32"),
            task.state,
        )
        _, _, _, tokens, lengths, scores, weights, _ = repeat(unfinished, advance, start)
        return Found(tokens, lengths, scores, heads_first(weights, 1))


@dataclasses.dataclass(frozen=True)
class GreedySearch(OneByOne):
    """The most probable token at every step.

    Args:
        min_length: Integer, the fewest tokens of an output, its end token counted.
        banned_tokens: Ids that an output may not have.
        no_repeat_ngram: Integer n: no n tokens in a row occur twice. 0 allows it.

    Raises:
        ValueError: A setting that makes no sense.

    Example, with a `Seq2Seq`:

    >>> search = GreedySearch(no_repeat_ngram=2)
    >>> generated = model.generate([[3, 4, 5]], search, max_length=6, verbose=0)
    >>> generated.tokens.shape
    (1, 6)
    """

    def choose(self, log_probs, uniform):
        # Not argmax, which built-in LiteRT operations lack.
        return ops.cast(ops.top_k(log_probs, 1)[1], "int32")[:, 0]


@dataclasses.dataclass(frozen=True)
class RandomSampling(OneByOne):
    """A random token at every step, by the probabilities of the model.

    The scores are log-probabilities of the model itself: temperature and the two limits
    change what is drawn, not what it counts.

    Args:
        temperature: Number above 0: divides the log-probabilities. Below 1 the probable
            tokens become more so.
        top_k: Integer: only the k most probable tokens.
        top_p: Number up to 1: only the most probable tokens that reach this sum (the
            nucleus; Holtzman et al. 2019, https://arxiv.org/abs/1904.09751, section 3.1).
        seed: Integer: the same samples in every call. By default new ones.
        min_length, banned_tokens, no_repeat_ngram: As of `GreedySearch`.

    Raises:
        ValueError: A setting that makes no sense.

    Example, with a `Seq2Seq`:

    >>> search = RandomSampling(temperature=0.8, top_k=5, seed=1)
    >>> first = model.generate([[3, 4, 5]], search, max_length=6, verbose=0)
    >>> second = model.generate([[3, 4, 5]], search, max_length=6, verbose=0)
    >>> bool((first.tokens == second.tokens).all())
    True
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    draws = True

    def __post_init__(self):
        super().__post_init__()
        owner = type(self).__name__
        self._store(
            "temperature", checks.number(owner, "temperature", self.temperature, above=0)
        )
        if self.top_k is not None:
            self._store("top_k", checks.positive_int(owner, "top_k", self.top_k))
        if self.seed is not None:
            fix = "pass an integer, or None for new samples in every call."
            self._store("seed", checks.count(owner, "seed", self.seed, fix))
        if self.top_p is not None:
            self._store("top_p", checks.number(owner, "top_p", self.top_p, above=0, most=1))

    def choose(self, log_probs, uniform):
        size = log_probs.shape[-1]
        probable, order = ops.top_k(log_probs, min(self.top_k or size, size))
        # Less than the best, so that the best is drawn at any temperature above 0.
        behind = ops.where(probable > IMPOSSIBLE, probable - probable[:, :1], 0.0)
        scaled = behind / min(max(self.temperature, COLDEST), HOTTEST)
        probabilities = functions.masked_softmax(scaled, probable > IMPOSSIBLE)
        before = ops.cumsum(probabilities, axis=-1) - probabilities
        if self.top_p is not None:
            kept = before < self.top_p
            probabilities = ops.where(kept, probabilities, ops.zeros_like(probabilities))
        sums = ops.cumsum(probabilities, axis=-1)
        drawn = ops.expand_dims(uniform, 1) * sums[:, -1:]
        # The first whose sum exceeds the drawn number; rounding must not pass the last.
        index = ops.sum(ops.cast(sums <= drawn, "int32"), axis=-1, keepdims=True)
        last = ops.sum(ops.cast(probabilities > 0, "int32"), axis=-1, keepdims=True) - 1
        index = ops.minimum(index, ops.maximum(last, 0))
        return ops.cast(ops.take_along_axis(order, index, axis=1), "int32")[:, 0]


def at(x, position, axis=1):
    """x (B, L, ...), or with L at `axis`, at `position`, a scalar tensor: (B, ...)."""
    return ops.squeeze(ops.take(x, ops.reshape(position, (1,)), axis=axis), axis)


def write(buffer, position, value, axis=1):
    """`buffer` (B, L, ...), or with L at `axis`, with `value` (B, ...) at `position`."""
    here = ops.equal(ops.arange(buffer.shape[axis], dtype="int32"), position)
    here = ops.reshape(here, (-1, *[1] * (len(buffer.shape) - axis - 1)))
    return ops.where(here, ops.expand_dims(value, axis), buffer)


def repeat(unfinished, advance, start):
    """`ops.while_loop`, whose variables keep the static shapes that they enter with.

    TensorFlow wants that, and knows a batch of one row as it enters the loop, but not behind
    a reshape to (-1, ...), once the number of source steps is free.
    """

    def same(new, old):
        return new if tuple(new.shape) == tuple(old.shape) else ops.reshape(new, ops.shape(old))

    def one_step(*before):
        return keras.tree.map_structure(same, advance(*before), before)

    return ops.while_loop(unfinished, one_step, start)


def heads_first(weights, axis):
    """(B, L, H, S), with L at `axis`, to (B, H, L, S); without heads as it is."""
    return weights if len(weights.shape) == axis + 2 else ops.swapaxes(weights, axis, axis + 1)
