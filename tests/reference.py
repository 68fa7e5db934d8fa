"""The executable specification: every formula of the package in plain NumPy loops.

Nothing here is vectorised over batch, steps or heads, nothing is imported from the
package, and everything is float64. Expected values in the tests come from here.
"""

import math

import numpy as np


def masked_softmax(scores, mask):
    """Softmax of one row over the kept entries; all 0 where nothing is kept."""
    weights = np.zeros(len(scores))
    kept = [i for i in range(len(scores)) if mask[i]]
    if kept:
        top = max(scores[i] for i in kept)
        total = sum(np.exp(scores[i] - top) for i in kept)
        for i in kept:
            weights[i] = np.exp(scores[i] - top) / total
    return weights


def dot_score(query, key):
    return sum(q * k for q, k in zip(query, key, strict=True))


def general_score(query, key, matrix):
    return sum(
        query[i] * matrix[i, j] * key[j] for i in range(len(query)) for j in range(len(key))
    )


def additive_score(query, key, query_matrix, key_matrix, vector):
    """v . tanh(q W + h U), the matrices as Keras stores them: (input, output)."""
    energy = np.tanh(query @ query_matrix + key @ key_matrix)
    return sum(v * e for v, e in zip(vector, energy, strict=True))


def attend(score, query, value, mask):
    """One query (D_q,) over value (S, D_v): context (D_v,) and weights (S,)."""
    scores = [score(query, h) if keep else 0.0 for h, keep in zip(value, mask, strict=True)]
    weights = masked_softmax(scores, mask)
    context = np.zeros(value.shape[1])
    for weight, h in zip(weights, value, strict=True):
        if weight:
            context = context + weight * h
    return context, weights


def attention(score, query, value, query_mask=None, value_mask=None):
    """query (B, T, D_q), value (B, S, D_v), masks (B, T) and (B, S) or (B, T, S)."""
    batch, steps = query.shape[:2]
    context = np.zeros((batch, steps, value.shape[2]))
    weights = np.zeros((batch, steps, value.shape[1]))
    for b in range(batch):
        for t in range(steps):
            if query_mask is not None and not query_mask[b, t]:
                continue
            mask = np.ones(value.shape[1], bool)
            if value_mask is not None:
                mask = value_mask[b, t] if np.ndim(value_mask) == 3 else value_mask[b]
            context[b, t], weights[b, t] = attend(score, query[b, t], value[b], mask)
    return context, weights


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def simple_step(x, states, kernel, recurrent, bias):
    h = np.tanh(x @ kernel + states[0] @ recurrent + bias)
    return h, [h]


def lstm_step(x, states, kernel, recurrent, bias):
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, [h, c]


def gru_step(x, states, kernel, recurrent, bias):
    """Keras's GRU with reset_after=True: two biases, gates z, r, candidate."""
    (h,) = states
    xz, xr, xh = np.split(x @ kernel + bias[0], 3)
    hz, hr, hh = np.split(h @ recurrent + bias[1], 3)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    h = z * h + (1 - z) * np.tanh(xh + r * hh)
    return h, [h]


def run_encoder(step, inputs, mask, weights, sizes):
    """One direction over (S, D): outputs (S, U), 0 at masked steps, and the states."""
    states = [np.zeros(size) for size in sizes]
    outputs = np.zeros((len(inputs), sizes[0]))
    for t in range(len(inputs)):
        if mask[t]:
            outputs[t], states = step(inputs[t], states, *weights)
    return outputs, states


def decode_before(score, step, cell_weights, inputs, memory, mask, states):
    """Bahdanau, one row: the context of s_{t-1} enters the cell beside the input."""
    outputs, all_weights = [], []
    for x in inputs:
        context, weights = attend(score, states[0], memory, mask)
        output, states = step(np.concatenate([x, context]), states, *cell_weights)
        outputs.append(output)
        all_weights.append(weights)
    return np.array(outputs), np.array(all_weights), states


def decode_after(score, step, cell_weights, combine, inputs, memory, mask, states, feed=None):
    """Luong, one row: h~_t = tanh([c_t; s_t] W_c) with the context of s_t.

    `feed` is h~_0 where the input is fed, else None; the last h~ joins the states.
    """
    outputs, all_weights = [], []
    for x in inputs:
        entered = x if feed is None else np.concatenate([x, feed])
        state, states = step(entered, states, *cell_weights)
        context, weights = attend(score, state, memory, mask)
        attentional = np.tanh(np.concatenate([context, state]) @ combine)
        feed = None if feed is None else attentional
        outputs.append(attentional)
        all_weights.append(weights)
    states = states if feed is None else [*states, feed]
    return np.array(outputs), np.array(all_weights), states


def allowed(log_probs, prefix, end, max_length, search):
    """What may follow `prefix`, by the rules that all searches share; -inf for the rest."""
    if len(prefix) == max_length - 1:
        tokens = [end]
    else:
        tokens = [t for t in range(len(log_probs)) if t not in search.banned_tokens]
        if len(prefix) + 1 < search.min_length:
            tokens = [t for t in tokens if t != end]
        n = search.no_repeat_ngram
        if n:
            seen = {tuple(prefix[i : i + n]) for i in range(len(prefix) - n + 1)}
            tokens = [t for t in tokens if (*prefix, t)[len(prefix) + 1 - n :] not in seen]
    result = np.full(len(log_probs), -np.inf)
    for token in tokens or [end]:
        result[token] = log_probs[token]
    return result


def beam_search(next_log_probs, next_weights, real, end, max_length, search):
    """(score, tokens) of the finished hypotheses, best first, at most `search.width`.

    Of the 2K best continuations, the first K may finish, and the first K others go on.
    """
    running, finished = [(0.0, ())], []
    for length in range(1, max_length + 1):
        candidates = []
        for total, prefix in running:
            steps = allowed(next_log_probs(prefix), prefix, end, max_length, search)
            candidates += [(total + steps[t], (*prefix, t)) for t in range(len(steps))]
        candidates = [one for one in candidates if one[0] > -np.inf]
        candidates = sorted(candidates, key=lambda one: -one[0])[: 2 * search.width]
        for total, tokens in candidates[: search.width]:
            if tokens[-1] == end:
                coverage = sum(next_weights(tokens[:i]) for i in range(length))
                score = total / _penalty(search, length)
                score += search.coverage_penalty * sum(
                    math.log(min(max(c, 1e-6), 1)) for c in coverage[real]
                )
                finished.append((score, tokens))
        finished = sorted(finished, key=lambda one: -one[0])[: search.width]
        running = [one for one in candidates if one[1][-1] != end][: search.width]
        if not running or (search.width == 1 and finished):
            break
    return finished


def _penalty(search, length):
    if callable(search.length_penalty):
        return search.length_penalty(length)
    return length**search.length_penalty
