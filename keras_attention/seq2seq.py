"""The encoder-decoder as one model: it trains, generates and is served.

Sizes: B batch, T target steps, S source steps, L `max_length`, N `n_best`, V vocabulary.
"""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attention import assembly, checks, serving, token_ids
from keras_attention.generator import Generator
from keras_attention.masking import AttachedMask
from keras_attention.parts import part_config
from keras_attention.search import GreedySearch, Search

PARTS = ("source_embedding", "encoder", "target_embedding", "decoder", "output_layer")


class Generated(NamedTuple):
    """What `Seq2Seq.generate` returns: NumPy arrays. With `n_best`, an axis N after B.

    tokens: int32 (B, L), one end token and then padding.
    lengths: int32 (B,), the end token counted. 0, with score minus infinity, where there
        are fewer than N possible outputs.
    scores: float32 (B,), summed log-probabilities; of a beam after its penalties.
    weights: float32 (B, L, S), or (B, H, L, S) with several heads; 0 behind the end.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    weights: np.ndarray


@keras.saving.register_keras_serializable(package="keras_attention")
class Seq2Seq(keras.Model):
    """An encoder-decoder with attention, from five layers.

    The layers may be new, or those of a functional model that is trained already: they are
    shared, not copied. The model is built at once.

    Args:
        source_embedding: Layer, ids (B, S) to (B, S, .), such as `Embedding(mask_zero=True)`.
        encoder: Layer that returns memory (B, S, D_v) and the decoder's first state, such as
            `BiEncoder`, or a `GRU` with return_sequences=True and return_state=True.
        target_embedding: Layer, ids (B, T) to (B, T, .), each step by itself.
        decoder: `AttentionDecoder`.
        output_layer: Layer, (B, T, .) to logits (B, T, V), each step by itself, such as
            `Dense(V)`; no softmax.
        start_token, end_token, pad_token: Their ids in the target's vocabulary; `pad_token`
            also in the source's.
        **kwargs: `name` and so on, as for every Keras model.

    Call arguments:
        inputs: A pair (or a dict with `source` and `target`) of source ids (B, S) and of
            target ids (B, T) that begin with the start token: teacher forcing.
        training: Boolean, for dropout.

    Returns:
        Logits (B, T, V). They carry the target's mask, so that a loss is a mean over real
        steps.

    Masking: the masks are those of the embeddings, or ids that are not `pad_token` where an
    embedding makes none.

    Raises:
        ValueError: A part that does not fit, token ids outside of the vocabulary, an output
            layer with a softmax; from `generate`, what its arguments say.
        TypeError: A ragged source.

    Example:

    >>> from keras import layers
    >>> model = Seq2Seq(
    ...     layers.Embedding(13, 8, mask_zero=True), BiEncoder(layers.GRU(7)),
    ...     layers.Embedding(11, 8, mask_zero=True),
    ...     AttentionDecoder(layers.GRUCell(7), BahdanauAttention(5)),
    ...     layers.Dense(11), start_token=1, end_token=2)
    >>> generated = model.generate([[3, 4, 5], [6, 7, 0]], max_length=6, verbose=0)
    >>> generated.tokens.shape, generated.weights.shape
    ((2, 6), (2, 6, 3))

    References:
        Bahdanau, Cho and Bengio 2014, https://arxiv.org/abs/1409.0473.
        Luong, Pham and Manning 2015, https://arxiv.org/abs/1508.04025.
    """

    def __init__(
        self,
        source_embedding,
        encoder,
        target_embedding,
        decoder,
        output_layer,
        *,
        start_token,
        end_token,
        pad_token=0,
        **kwargs,
    ):
        tokens = {"start_token": start_token, "end_token": end_token, "pad_token": pad_token}
        for name, token in tokens.items():
            tokens[name] = checks.token_id("Seq2Seq", name, token)
        assembly.check_parts(decoder, output_layer, tokens)
        assembly.check_embeddings(
            tokens, source_embedding=source_embedding, target_embedding=target_embedding
        )
        super().__init__(**kwargs)
        self.source_embedding = source_embedding
        self.encoder = encoder
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.output_layer = output_layer
        self.start_token = tokens["start_token"]
        self.end_token = tokens["end_token"]
        self.pad_token = tokens["pad_token"]
        self.source_mask = AttachedMask(name="source_mask")
        self.target_mask = AttachedMask(name="target_mask")
        self._generators = _Cache()
        self.build([(None, None), (None, None)])  # ids of any batch and length

    def build(self, input_shape):
        if self.built:
            return
        logits = self.call([keras.Input((None,), dtype="int32") for _ in range(2)])
        if len(logits.shape) != 3 or logits.shape[-1] is None:
            checks.fail(
                self,
                "output_layer",
                "a layer that returns logits (B, T, V)",
                f"'{self.output_layer.name}', which returns shape {tuple(logits.shape)}",
                "pass Dense(V), V the size of the target's vocabulary.",
            )
        self.vocabulary = logits.shape[-1]
        assembly.check_tokens(self)
        self.built = True

    def call(self, inputs, training=None):
        source, target = _pair(inputs)
        memory, state, source_mask = self.encode(source, training)
        embedded = self.target_embedding(target)
        outputs, _, _ = self.decoder(
            embedded,
            memory,
            initial_state=state,
            inputs_mask=self.target_mask(embedded, ops.not_equal(target, self.pad_token)),
            memory_mask=source_mask,
            training=training,
        )
        return self.output_layer(outputs)

    def encode(self, source, training=None):
        """Source ids (B, S) to memory (B, S, D_v), first state, and the mask (B, S)."""
        embedded = self.source_embedding(source)
        mask = self.source_mask(embedded, ops.not_equal(source, self.pad_token))
        encoded = self.encoder(embedded, mask=mask, training=training)
        assembly.check_encoded(self.encoder, encoded)
        return encoded[0], keras.tree.flatten(encoded[1:]), mask

    def generate(
        self,
        source,
        search=None,
        max_length=None,
        batch_size=32,
        verbose="auto",
        *,
        prefix=None,
    ):
        """Outputs for `source`, by a search that runs as one compiled graph.

        It is compiled once for each search and `max_length`; where XLA compiles (on JAX, with
        `jit_compile=True`, on a GPU by default) for each batch size and source length as
        well. It stops when every row of a batch is finished.

        Args:
            source: Ids (B, S), padded on any side; or a dataset of them, as `predict` takes
                it, all of one S, whose ids are not checked. A row of padding alone is
                answered like any other, with weights 0.
            search: `GreedySearch()` (the default), `BeamSearch(width)` or `RandomSampling()`.
            max_length: Integer L, the most tokens of an output, its end token counted: the
                last of them is the end token.
            batch_size, verbose: As of `predict`; a single batch shows no progress.
            prefix: Ids that every output must begin with, without start and end token, (P,),
                or (B, P) with one row per row of the source; `pad_token` leaves the rest of
                a row free. P < L. Its log-probabilities count.

        Returns:
            `Generated`, for B = 0 too.
        """
        generator = self.generator(search, max_length)
        if batch_size is None:
            batch_size = 32
        batch_size = checks.positive_int("Seq2Seq.generate", "batch_size", batch_size)
        generator.restart()
        if token_ids.is_dataset(source):
            if prefix is not None:
                raise ValueError(
                    "Seq2Seq.generate: `prefix` should come with an array as `source`, but "
                    f"received a {type(source).__name__}. Fix: generate batch by batch."
                )
            return Generated(**generator.predict(source, verbose=verbose))
        inputs = ids = token_ids.source_ids(
            source, token_ids.vocabulary_size(self.source_embedding)
        )
        if prefix is not None:
            forced = token_ids.forced_ids(prefix, len(ids), self, generator.max_length)
            inputs = {"source": ids, "forced": forced}
        if len(ids) == 0:
            return Generated(**generator.nothing(ids.shape[1]))
        if len(ids) <= batch_size:  # a single batch needs none of what `predict` sets up
            return Generated(**generator.predict_on_batch(inputs))
        return Generated(**generator.predict(inputs, batch_size=batch_size, verbose=verbose))

    def generator(self, search=None, max_length=None):
        """The Keras model behind `generate`: source ids to a dict with what it returns."""
        search = GreedySearch() if search is None else search
        if not isinstance(search, Search):
            raise ValueError(
                f"Seq2Seq: `search` should be a search, but received {search!r}. Fix: pass "
                "GreedySearch(), BeamSearch(5) or RandomSampling(), with the parentheses."
            )
        max_length = checks.positive_int("Seq2Seq", "max_length", max_length)
        if search.min_length > max_length:
            raise ValueError(
                f"Seq2Seq: `min_length` should be at most max_length={max_length}, but "
                f"received {search}. Fix: a smaller min_length, or a larger max_length."
            )
        token_ids.check_ids("Seq2Seq", "banned_tokens", search.banned_tokens, self.vocabulary)
        return self._generators.get(self, search, max_length)

    def export(
        self,
        filepath,
        format="tf_saved_model",
        verbose=None,
        input_signature=None,
        *,
        search=None,
        max_length=None,
        **kwargs,
    ):
        """Writes what answers source ids as `generate` does, without this package.

        Args:
            filepath: A folder, or for "litert" a file `.tflite`, for "onnx" `.onnx`.
            format: "tf_saved_model": source ids of any batch and length. Its endpoints are
                `generate(source)` (also called `serve`), which returns a dict of `tokens`,
                `lengths`, `scores` and `weights`, and `logits(source, target)`.
                "litert": source ids of one fixed shape; no sampling.
                "onnx": source ids of the shape that `input_signature` states; no sampling.
            verbose, **kwargs: As of `keras.Model.export`.
            input_signature: For "litert" and "onnx" the shape of the source,
                `[keras.InputSpec(shape=(1, 20), dtype="int32")]`.
            search, max_length: As of `generate`.

        Source ids are not checked there: the caller has to keep below the vocabulary.
        """
        generator = self.generator(search, max_length)
        serving.export(self, generator, filepath, format, verbose, input_signature, **kwargs)

    def get_config(self):
        layers = {name: getattr(self, name) for name in PARTS}
        config = {name: part_config(layer) for name, layer in layers.items()}
        for index, name in enumerate(PARTS):  # one embedding for both vocabularies stays one
            for earlier in PARTS[:index]:
                if layers[name] is layers[earlier]:
                    config[name] = earlier
                else:
                    assembly.check_apart(name, layers[name], earlier, layers[earlier])
        tokens = {
            "start_token": self.start_token,
            "end_token": self.end_token,
            "pad_token": self.pad_token,
        }
        return {**super().get_config(), **config, **tokens}

    @classmethod
    def from_config(cls, config):
        parts = {}
        for name in PARTS:
            part = config[name]
            shared = isinstance(part, str)
            parts[name] = parts[part] if shared else keras.saving.deserialize_keras_object(part)
        return cls(**{**config, **parts})


class _Cache:
    """Generators, compiled, by search and length. Not a dict, whose layers Keras tracks.

    A compiled graph reads the variables that it was compiled with. Others come from
    `quantize` and `enable_lora`, also of a single layer.
    """

    def __init__(self):
        self.generators, self.weights = {}, []

    def get(self, model, search, max_length):
        weights = model.weights
        if [id(one) for one in weights] != [id(one) for one in self.weights]:
            self.generators, self.weights = {}, weights  # kept, so that no id is used again
        key = (search, max_length, model.run_eagerly, model.jit_compile)
        if key not in self.generators:
            self.generators[key] = Generator(model, search, max_length)
        return self.generators[key]


def _pair(inputs):
    if isinstance(inputs, dict):
        inputs = [inputs.get(name) for name in ("source", "target")]
    pair = isinstance(inputs, (list, tuple)) and len(inputs) == 2
    if not pair or any(one is None for one in inputs):
        raise ValueError(
            "Seq2Seq: `inputs` should be a pair of source ids (B, S) and target ids (B, T), "
            f"but received {type(inputs).__name__}. Fix: model((source, target)); without "
            "a target, model.generate(source, max_length=...)."
        )
    return inputs
