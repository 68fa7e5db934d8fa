"""The model that generates: a search over a trained model, as one graph.

Sizes: B batch, S source steps, L `max_length`, V vocabulary, H heads.
"""

import keras
import numpy as np
from keras import ops

from keras_attention import functions
from keras_attention.search import Task


class Generator(keras.Model):
    """From source ids to output ids: what `Seq2Seq.generate` predicts with and exports.

    It is a Keras model, so that `predict` compiles it, cuts the source in batches and shows
    progress on every backend, and that `export` writes it in every format. It has no
    weights but those of the model it is made from.

    Args:
        model: A `Seq2Seq`.
        search: A `Search`.
        max_length: Integer L, the most tokens of an output, its end token counted.

    Call arguments:
        inputs: Source ids (B, S); or a dict of them, `source`, and of the ids (B, L) that
            the outputs must have, `forced`, -1 where they are free.

    Returns:
        A dict of `tokens`, `lengths`, `scores` and `weights`, as `Found` describes them.
    """

    def __init__(self, model, search, max_length):
        super().__init__(name=f"{model.name}_generator")
        self.model = model
        self.search = search
        self.max_length = max_length
        self.seeds = keras.random.SeedGenerator(getattr(search, "seed", None))
        self.run_eagerly = model.run_eagerly
        self.jit_compile = model.jit_compile
        self.build((None, None))

    def build(self, source_shape):
        """There is nothing to build: `model` is."""

    def call(self, inputs):
        source, forced = _source_and_forced(inputs)
        model, decoder = self.model, self.model.decoder
        memory, state, real = model.encode(source, training=False)
        prepared = decoder.prepare(memory, real)
        state = decoder.get_initial_state(ops.shape(source)[0], state)

        def step(tokens, state):
            embedded = model.target_embedding(ops.expand_dims(tokens, 1))
            output, weights, state = decoder.step(ops.squeeze(embedded, 1), state, prepared)
            logits = model.output_layer(ops.expand_dims(output, 1))
            log_probs = ops.log_softmax(functions.wide(ops.squeeze(logits, 1)))
            return ops.cast(log_probs, "float32"), ops.cast(weights, "float32"), state

        found = self.search.run(
            Task(
                step=step,
                state=state,
                real=real,
                weights_shape=(*self.model.decoder.attention.heads_shape, ops.shape(memory)[1]),
                uniform=lambda shape: keras.random.uniform(shape, seed=self.seeds),
                forced=forced,
                start_token=model.start_token,
                end_token=model.end_token,
                pad_token=model.pad_token,
                max_length=self.max_length,
            )
        )
        return found._asdict()

    def nothing(self, source_steps):
        """What comes of no rows."""
        n_best = getattr(self.search, "n_best", None)
        shape = (0, n_best) if n_best else (0,)
        weights = (
            *shape,
            *self.model.decoder.attention.heads_shape,
            self.max_length,
            source_steps,
        )
        return {
            "tokens": np.zeros((*shape, self.max_length), "int32"),
            "lengths": np.zeros(shape, "int32"),
            "scores": np.zeros(shape, "float32"),
            "weights": np.zeros(weights, "float32"),
        }

    def restart(self):
        """With a seed, the next call draws what the first one drew."""
        if getattr(self.search, "seed", None) is not None:
            fresh = keras.random.SeedGenerator(self.search.seed)
            self.seeds.state.assign(fresh.state)


def _source_and_forced(inputs):
    if isinstance(inputs, dict) and inputs.keys() == {"source", "forced"}:
        return inputs["source"], inputs["forced"]
    if isinstance(inputs, (dict, list, tuple)):
        raise ValueError(
            "Seq2Seq.generate: `source` should be ids (B, S) alone, without targets, but "
            f"received a {type(inputs).__name__} of {len(inputs)}. Fix: of a dataset to train "
            "on, dataset.map(lambda x, y: x[0])."
        )
    return inputs, None
