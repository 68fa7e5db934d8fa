"""Beam search: the best of several hypotheses, of which finished ones leave their slot.

Sizes: B batch, K hypotheses of each row (the width), L `max_length`, S source steps,
H heads, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_attention import checks
from keras_attention.search import IMPOSSIBLE, Found, Search, at, heads_first, repeat, write

# Attention summed to less than this counts as this: the logarithm stays finite.
LEAST_COVERAGE = 1e-6


@dataclasses.dataclass(frozen=True)
class GNMTPenalty:
    """The length penalty of Wu et al. 2016: ((5 + length) / 6)^alpha.

    Args:
        alpha: Number from 0 up. 0 scores by the plain sum; there 0.2 was best.

    Example:

    >>> search = BeamSearch(5, length_penalty=GNMTPenalty(0.6))
    >>> search.length_penalty(1)
    1.0

    References:
        Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14.
    """

    alpha: float

    def __post_init__(self):
        alpha = checks.number("GNMTPenalty", "alpha", self.alpha, least=0)
        object.__setattr__(self, "alpha", alpha)

    def __call__(self, length):
        return ((5.0 + length) / 6.0) ** self.alpha


class Running(NamedTuple):
    """The hypotheses that go on: log-probabilities (B, K), and what led to them.

    tokens: int32 (B, K, L). slots: int32 (B, K, L), in which of the K slots a hypothesis
    was at each step, so that what a step computed is never re-ordered.
    """

    sums: object
    tokens: object
    slots: object


class Finished(NamedTuple):
    """The best finished ones, best first: final scores (B, K), minus infinity if free."""

    scores: object
    lengths: object
    tokens: object
    slots: object


@dataclasses.dataclass(frozen=True)
class BeamSearch(Search):
    """The best output among the K most probable hypotheses.

        score = sum_t log p(y_t | y_<t, x) / penalty(length)
              + coverage_penalty * sum_i log(min(sum_t a_{t,i}, 1))

    At every step the 2K best continuations are looked at. Of the first K, those that end
    join the finished ones, of which the best K stay; the best K others go on. A row stops
    once no running hypothesis can still come among its results. With K = 1 this is greedy
    search: a row stops at its first end.

    Args:
        width: Integer K.
        n_best: Integer N: the results get an axis of this size, best first. By default
            they have none, and hold the best.
        length_penalty: Number alpha for length^alpha (0 scores by the plain sum, 1 by the
            mean), or a function of the length that never falls, such as
            `GNMTPenalty(alpha)`. The length counts the end token. A function is compared by
            identity, so define it once, or each call compiles anew.
        coverage_penalty: Number; above 0 it costs an output to leave real source steps
            unattended. Padding costs nothing. With several heads, of their mean.
        min_length, banned_tokens, no_repeat_ngram: As of `GreedySearch`.

    Raises:
        ValueError: A setting that makes no sense.

    Example, with a `Seq2Seq`:

    >>> search = BeamSearch(5, n_best=3, length_penalty=1.0)
    >>> generated = model.generate([[3, 4, 5]], search, max_length=6, verbose=0)
    >>> generated.tokens.shape, generated.scores.shape
    ((1, 3, 6), (1, 3))

    References:
        Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14. There a coverage
        of 0 costs infinity, here the logarithm of 1e-6.
    """

    width: int
    n_best: int | None = None
    length_penalty: float | Callable = 0.0
    coverage_penalty: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        for name in ("width",) if self.n_best is None else ("width", "n_best"):
            self._store(name, checks.positive_int("BeamSearch", name, getattr(self, name)))
        if self.n_best is not None and self.n_best > self.width:
            raise ValueError(
                f"BeamSearch: `n_best` should be at most width={self.width}, but received "
                f"n_best={self.n_best}. Fix: BeamSearch({self.n_best}, n_best={self.n_best})."
            )
        for name in ("length_penalty", "coverage_penalty"):
            value = getattr(self, name)
            if name == "coverage_penalty" or not callable(value):
                self._store(name, checks.number("BeamSearch", name, value, least=0))

    def run(self, task):
        batch, width = ops.shape(task.state[0])[0], self.width
        if task.forced is not None:
            task = task._replace(forced=ops.repeat(task.forced, width, axis=0))

        def unfinished(position, last, running, *_):
            going = ops.any(running.sums > IMPOSSIBLE)
            return ops.logical_and(position < task.max_length, going)

        def advance(position, last, running, finished, weights, state):
            log_probs, new_weights, new_state = task.step(last, state[: len(task.state)])
            new_weights = _split(new_weights, width)
            weights = write(weights, position, new_weights, axis=2)
            # Coverage is one state more, where it counts.
            coverage = [one + _flat(_head_mean(new_weights)) for one in state[len(new_state) :]]
            candidates = self._candidates(log_probs, position, running, task)
            ends = ops.equal(at(candidates.tokens, position, axis=2), task.end_token)
            finished = self._finish(candidates, ends, coverage, finished, position, task)
            running = self._go_on(candidates, ends, finished, position, task)
            origins = at(running.slots, position, axis=2)
            state = [_flat(_pick(_split(one, width), origins)) for one in new_state + coverage]
            last = _flat(at(running.tokens, position, axis=2))
            return position + 1, last, running, finished, weights, state

        state = list(task.state)
        if self.coverage_penalty:
            state.append(ops.zeros(ops.shape(task.real), "float32"))
        start = (
            ops.zeros((), "int32"),
            ops.full((batch * width,), task.start_token, "int32"),
            self._first(batch, task),
            self._none(batch, task),
            ops.zeros((batch, width, task.max_length, *task.weights_shape), "float32"),
            [ops.repeat(one, width, axis=0) for one in state],
        )
        _, _, _, finished, weights, _ = repeat(unfinished, advance, start)
        return self._results(finished, weights, task)

    def _first(self, batch, task):
        """All hypotheses are alike before the first token; only one of them goes on."""
        empty = (batch, self.width, task.max_length)
        first = ops.equal(ops.arange(self.width), 0)
        sums = ops.where(first, ops.zeros((batch, self.width), "float32"), IMPOSSIBLE)
        return Running(
            sums,
            ops.full(empty, task.pad_token, "int32"),
            ops.zeros(empty, "int32"),
        )

    def _none(self, batch, task):
        empty = (batch, self.width, task.max_length)
        return Finished(
            ops.full((batch, self.width), IMPOSSIBLE, "float32"),
            ops.zeros((batch, self.width), "int32"),
            ops.full(empty, task.pad_token, "int32"),
            ops.zeros(empty, "int32"),
        )

    def _candidates(self, log_probs, position, running, task):
        """The best continuations, at most 2K, as `Running` with that many slots."""
        vocabulary = log_probs.shape[-1]
        allowed = self.allowed(log_probs, _flat(running.tokens), position, task)
        sums = ops.expand_dims(running.sums, -1)
        # A slot without a hypothesis stays so, whatever the model says of it.
        totals = ops.where(sums > IMPOSSIBLE, sums + _split(allowed, self.width), IMPOSSIBLE)
        totals = ops.reshape(totals, (-1, self.width * vocabulary))
        sums, index = ops.top_k(totals, min(2 * self.width, self.width * vocabulary))
        index = ops.cast(index, "int32")
        parents, token = index // vocabulary, index % vocabulary
        return Running(
            sums,
            write(_pick(running.tokens, parents), position, token, axis=2),
            write(_pick(running.slots, parents), position, parents, axis=2),
        )

    def _finish(self, candidates, ends, coverage, finished, position, task):
        """Finished ones, new and old: of the first K candidates, those that end."""
        first = Running(*(one[:, : self.width] for one in candidates))
        scores = first.sums / self._penalty(position + 1)
        for attention in coverage:
            parents = at(first.slots, position, axis=2)
            attention = _pick(_split(attention, self.width), parents)
            scores = scores + self.coverage_penalty * _log_coverage(attention, task.real)
        scores = ops.where(ends[:, : self.width], scores, IMPOSSIBLE)
        lengths = ops.full_like(finished.lengths, 1) * (position + 1)
        new = Finished(scores, lengths, first.tokens, first.slots)
        both = Finished(
            *(ops.concatenate(pair, axis=1) for pair in zip(finished, new, strict=True))
        )
        scores, order = ops.top_k(both.scores, self.width)
        return Finished(scores, *(_pick(one, order) for one in both[1:]))

    def _go_on(self, candidates, ends, finished, position, task):
        """The best K that do not end; none in a row whose results are settled."""
        going = ops.where(ends, IMPOSSIBLE, candidates.sums)
        sums, order = ops.top_k(going, self.width)
        last_result = finished.scores[:, (self.n_best or 1) - 1]
        # Sums only fall, so none can score more than now at the mildest penalty.
        mildest = self._penalty(task.max_length)
        settled = sums[:, 0] / mildest <= last_result
        if self.width == 1:  # greedy search: there is nothing to compare the first end with
            settled = ops.logical_or(settled, last_result > IMPOSSIBLE)
        settled = ops.expand_dims(settled, 1)
        sums = ops.where(settled, IMPOSSIBLE, sums)
        return Running(sums, *(_pick(one, order) for one in candidates[1:]))

    def _penalty(self, length):
        length = ops.cast(length, "float32")
        if callable(self.length_penalty):
            return ops.cast(self.length_penalty(length), "float32")
        return length**self.length_penalty

    def _results(self, finished, weights, task):
        """The best N, their weights brought together from the slots they went through."""
        best = Finished(*(one[:, : self.n_best or 1] for one in finished))
        there = best.scores > IMPOSSIBLE
        lengths = ops.where(there, best.lengths, ops.zeros_like(best.lengths))
        steps = ops.arange(task.max_length, dtype="int32")
        chosen = ops.logical_and(ops.expand_dims(there, -1), steps < best.lengths[..., None])
        tokens = ops.where(chosen, best.tokens, ops.full_like(best.tokens, task.pad_token))
        slots = ops.where(chosen, best.slots, ops.full_like(best.slots, -1))  # one_hot: zeros
        passed = ops.cast(ops.equal(slots[..., None], ops.arange(self.width)), "float32")
        flat = ops.reshape(weights, (*ops.shape(weights)[:3], math.prod(task.weights_shape)))
        shown = ops.einsum("bnlk,bklr->bnlr", passed, flat)
        shown = ops.reshape(shown, (*ops.shape(slots), *task.weights_shape))
        found = Found(tokens, lengths, best.scores, heads_first(shown, 2))
        return found if self.n_best else Found(*(one[:, 0] for one in found))


def _head_mean(weights):
    """(B, K, H, S) to (B, K, S); without heads as it is."""
    return weights if len(weights.shape) == 3 else ops.mean(weights, axis=2)


def _log_coverage(coverage, real):
    """sum_i log(min(coverage_i, 1)) over real steps: (B, K, S) to (B, K)."""
    logs = ops.log(ops.clip(coverage, LEAST_COVERAGE, 1.0))
    return ops.sum(ops.where(ops.expand_dims(real, 1), logs, ops.zeros_like(logs)), axis=-1)


def _flat(x):
    """(B, K, ...) to (B*K, ...)."""
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))


def _split(x, width):
    """(B*K, ...) to (B, K, ...)."""
    return ops.reshape(x, (-1, width, *ops.shape(x)[1:]))


def _pick(x, index):
    """x (B, M, ...) at index (B, N) of each row: (B, N, ...)."""
    index = ops.cast(index, "int32")
    rows = ops.expand_dims(ops.arange(ops.shape(x)[0], dtype="int32"), 1)
    return ops.take(_flat(x), rows * x.shape[1] + index, axis=0)
