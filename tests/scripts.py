"""Models without a network for searches: probabilities and attention by prefix."""

import numpy as np
from keras import ops

import reference
from keras_attention.search import Task

END = 0


class Script:
    """Next-token probabilities and attention weights for every prefix, in a table.

    table: (sentence, prefix) to a pair of probabilities (V,) and weights (S,). Prefixes are
    tuples of tokens; one that is not in the table is an error of the test: it gives NaN.
    """

    def __init__(self, table, sentences, real=None):
        self.table = table
        self.sentences = sentences
        probabilities, weights = next(iter(table.values()))
        self.vocabulary, self.steps = len(probabilities), len(weights)
        shape = (sentences, self.steps)
        self.real = np.ones(shape, bool) if real is None else np.array(real)
        self.nodes = list(table)

    def log_probs(self, sentence, prefix):
        with np.errstate(divide="ignore"):
            return np.log(self.table[sentence, tuple(prefix)][0])

    def weights(self, sentence, prefix):
        return np.array(self.table[sentence, tuple(prefix)][1])

    def task(self, max_length, rows=None, uniform=None, forced=None):
        """The task of searching the sentences of `rows`; by default each of them once."""
        rows = range(self.sentences) if rows is None else rows
        number = {node: index for index, node in enumerate(self.nodes)}
        nowhere = len(self.nodes)
        # One column more: the start token leaves the first prefix as it is.
        children = np.full((nowhere + 1, self.vocabulary + 1), nowhere)
        for (sentence, prefix), index in number.items():
            children[index, -1] = index
            for token in range(self.vocabulary):
                children[index, token] = number.get((sentence, (*prefix, token)), nowhere)
        logs = np.array([self.log_probs(*node) for node in self.nodes])
        logs = np.append(logs, [[np.nan] * self.vocabulary], axis=0).astype("float32")
        weights = np.array([self.weights(*node) for node in self.nodes])
        weights = np.append(weights, [[0.0] * self.steps], axis=0).astype("float32")

        def step(tokens, state):
            here = ops.cast(state[0][:, 0], "int32") * (self.vocabulary + 1) + tokens
            here = ops.take(ops.convert_to_tensor(children.reshape(-1)), here)
            return (
                ops.take(ops.convert_to_tensor(logs), here, axis=0),
                ops.take(ops.convert_to_tensor(weights), here, axis=0),
                [ops.cast(here[:, None], "float32")],
            )

        first = np.array([[number[sentence, ()]] for sentence in rows], "float32")
        return Task(
            step=step,
            state=[ops.convert_to_tensor(first)],
            real=ops.convert_to_tensor(self.real[list(rows)]),
            weights_shape=(self.steps,),
            uniform=lambda shape: ops.convert_to_tensor(np.broadcast_to(uniform, shape)),
            forced=None if forced is None else ops.convert_to_tensor(forced),
            start_token=self.vocabulary,
            end_token=END,
            pad_token=-1,
            max_length=max_length,
        )


def random_script(vocabulary, depth, steps, sentences=2, seed=0):
    """Every prefix up to `depth` tokens, with random probabilities and attention."""
    rng = np.random.default_rng(seed)
    table, prefixes = {}, [()]
    for _ in range(depth):
        for prefix in prefixes:
            for sentence in range(sentences):
                probabilities = rng.dirichlet(np.ones(vocabulary))
                table[sentence, prefix] = probabilities, rng.dirichlet(np.ones(steps))
        going = [token for token in range(vocabulary) if token != END]
        prefixes = [(*prefix, token) for prefix in prefixes for token in going]
    return Script(table, sentences)


def beam(script, sentence, search, max_length):
    """`reference.beam_search` on a script, with the settings of `search`."""
    return reference.beam_search(
        lambda prefix: script.log_probs(sentence, prefix),
        lambda prefix: script.weights(sentence, prefix),
        script.real[sentence],
        END,
        max_length,
        search,
    )
