"""The copy task: what attention is for, in one table and one picture.

A GRU encoder-decoder reads a sequence of random symbols and writes it out again. Without
attention everything has to pass through one state of fixed size, and accuracy falls with
length, towards chance (10 %, for there are 10 symbols). With attention the decoder looks the
symbols up, and length hardly matters.

    python examples/copy_task.py            # all of it; some minutes on two cores
    python examples/copy_task.py --quick    # under 90 seconds: two short lengths
    python examples/copy_task.py --help     # what else can be set

Printed: token and whole-sequence accuracy and training time for each attention and length,
row by row and once more as a table at the end. Drawn into the output folder: accuracy.png,
and alignment_<attention>.png for each attention.

Every model is trained in the same way, through the lengths from the shortest up: each
length starts from the weights that the one before ended with, and grows from there in the
first half of its steps. The sequences tested are never among those trained on.

Sizes: B batch, L length, S = T = L + 1 steps with the end token, U units, V vocabulary.
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attention import AttentionDecoder, BahdanauAttention, BiEncoder, LuongAttention

START, END, FIRST_SYMBOL = 1, 2, 3  # 0 is for padding, which sequences of one length lack
SYMBOLS = 10
VOCABULARY = FIRST_SYMBOL + SYMBOLS

ATTENTIONS = ("none", "bahdanau", "luong")
LENGTHS, STEPS = (5, 10, 20, 40, 80), 600
QUICK_LENGTHS, QUICK_STEPS = (5, 10), 150
EMBEDDING, BATCH = 32, 64
LEARNING_RATE, WARM_UP, CLIP, NOISE = 3e-3, 0.05, 1.0, 0.03
TESTS, TEST_BATCH = 500, 100


class Copier(NamedTuple):
    """Three functional models that share their layers."""

    trained: keras.Model  # source, target shifted by one -> logits
    encode: keras.Model  # source -> memory, state
    step: keras.Model  # token, memory, state -> logits, state, weights


class Cell(NamedTuple):
    """One cell of the table; the accuracies are in per cent."""

    tokens: float
    sequences: float
    seconds: float


def build_copier(attention, units):
    embed_source = keras.layers.Embedding(VOCABULARY, EMBEDDING)
    encoder = BiEncoder(keras.layers.GRU(units), state_units=units)
    embed_target = keras.layers.Embedding(VOCABULARY, EMBEDDING)
    decoder = build_decoder(attention, units)
    classify = keras.layers.Dense(VOCABULARY)

    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    memory, state = encoder(embed_source(source))
    outputs, _, _ = decode(decoder, embed_target(target), memory, state)
    trained = keras.Model({"source": source, "target": target}, classify(outputs))
    encode = keras.Model(source, [memory, *state])

    token = keras.Input((1,), dtype="int32", name="token")
    memory = keras.Input((None, 2 * units), name="memory")
    state = keras.Input((units,), name="state")
    outputs, weights, new_state = decode(decoder, embed_target(token), memory, [state])
    step = keras.Model([token, memory, state], [classify(outputs), *new_state, *weights])
    return Copier(trained, encode, step)


def build_decoder(attention, units):
    if attention == "none":
        return keras.layers.GRU(units, return_sequences=True, return_state=True)
    layer = BahdanauAttention(units) if attention == "bahdanau" else LuongAttention("general")
    return AttentionDecoder(keras.layers.GRUCell(units), layer)


def decode(decoder, inputs, memory, state):
    """Outputs (B, T, U), a list with the weights (B, T, S) if there are any, new state."""
    if isinstance(decoder, AttentionDecoder):
        outputs, weights, state = decoder(inputs, memory, state)
        return outputs, [weights], state
    outputs, state = decoder(inputs, initial_state=state)
    return outputs, [], [state]


def draw_sequences(rng, count, length, held_out):
    """Random symbols and an end token: (count, L + 1), int32.

    A checksum keeps training and test apart: the symbols held out, and only they, add up
    to a multiple of 10. Of the short sequences, training would see most otherwise.
    """
    symbols = rng.integers(SYMBOLS, size=(count, length))
    checksum = 0 if held_out else rng.integers(1, SYMBOLS, size=count)
    symbols[:, -1] = (checksum - symbols[:, :-1].sum(axis=1)) % SYMBOLS
    return np.pad(symbols + FIRST_SYMBOL, ((0, 0), (0, 1)), constant_values=END).astype("int32")


def shift(rng, sequences):
    """What teacher forcing feeds: the sequences from the start token on, with some noise.

    Decoding greedily, the model is fed its own mistakes. Having met wrong tokens in
    training, it copies on after one, and does not lose its place.
    """
    noise = rng.integers(FIRST_SYMBOL, VOCABULARY, sequences.shape, dtype="int32")
    noisy = np.where(rng.random(sequences.shape) < NOISE, noise, sequences)
    return np.pad(noisy[:, :-1], ((0, 0), (1, 0)), constant_values=START)


class Batches(keras.utils.PyDataset):
    """Fresh sequences, longer and longer in the first half of the steps.

    They grow from `previous` to `length`: where to look next is learned a symbol at a time.
    """

    def __init__(self, previous, length, steps, seed):
        super().__init__()
        self.lengths = np.full(steps, length)
        half = steps // 2
        self.lengths[:half] = np.linspace(previous + 1, length, half).round()
        # Keras takes a size that is the same in the first two batches to be so in all.
        self.lengths[0] = length
        self.seed = seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        rng = np.random.default_rng([*self.seed, index])
        source = draw_sequences(rng, BATCH, self.lengths[index], held_out=False)
        return {"source": source, "target": shift(rng, source)}, source


def train(model, batches):
    """Teacher forcing on the batches in their order; returns the seconds that it took."""
    warm_up = max(1, round(WARM_UP * len(batches)))
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, len(batches) - warm_up), warmup_target=LEARNING_RATE, warmup_steps=warm_up
    )
    model.compile(
        optimizer=keras.optimizers.Adam(rate, clipnorm=CLIP),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    started = time.perf_counter()
    model.fit(batches, shuffle=False)
    return time.perf_counter() - started


def steps_for(length, fewest):
    """Training steps: `fewest` up to length 40, and more in proportion beyond."""
    return round(fewest * max(1, length / 40))


def copy_greedily(copier, source):
    """The model's own copy (B, T), each token fed back, and the weights (B, T, S) or None."""
    memory, state = copier.encode.predict_on_batch(source)
    token = np.full((len(source), 1), START, dtype="int32")
    tokens, weights = [], []
    for _ in range(source.shape[1]):
        logits, state, *step_weights = copier.step.predict_on_batch([token, memory, state])
        token = logits.argmax(axis=-1).astype("int32")
        tokens.append(token)
        weights += step_weights
    return np.concatenate(tokens, axis=1), np.concatenate(weights, axis=1) if weights else None


def train_through_lengths(attention, args):
    """Trains one model; yields length, `Cell`, and an example as `draw_alignment` takes it."""
    keras.utils.set_random_seed(args.seed)
    test_rng = np.random.default_rng(args.seed)
    copier = build_copier(attention, args.units)
    for previous, length in itertools.pairwise([0, *args.lengths]):
        print(f"\nAttention: {attention}, length: {length}")
        steps = steps_for(length, args.steps)
        batches = Batches(previous, length, steps, seed=(args.seed, length))
        seconds = train(copier.trained, batches)
        source = draw_sequences(test_rng, TESTS, length, held_out=True)
        batches = np.split(source, TESTS // TEST_BATCH)
        copies, weights = zip(*(copy_greedily(copier, batch) for batch in batches), strict=True)
        right = np.concatenate(copies) == source
        tokens, whole = right[:, :-1].mean(), right.all(axis=1).mean()
        example = (source[0], copies[0][0], weights[0][0]) if weights[0] is not None else None
        yield length, Cell(100 * tokens, 100 * whole, seconds), example


def print_table(cells, args):
    """Markdown: one line per length, one column per model."""
    print("\nTokens right % / whole sequences right % (seconds of training)\n")
    print("| length |", " | ".join(args.attention), "|")
    print("|---:|" + "---|" * len(args.attention))
    for length in args.lengths:
        row = [cells[attention, length] for attention in args.attention]
        texts = [f"{c.tokens:.2f} / {c.sequences:.1f} ({c.seconds:.0f} s)" for c in row]
        print(f"| {length} |", " | ".join(texts), "|")


def draw_accuracy(cells, args, path):
    figure, axes = new_axes(7, 4.5)
    for attention, marker in zip(args.attention, "os^", strict=False):
        accuracy = [cells[attention, length].tokens for length in args.lengths]
        axes.plot(args.lengths, accuracy, marker=marker, label=attention)
    axes.axhline(100 / SYMBOLS, color="grey", linestyle="--", label="chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(args.lengths, labels=args.lengths)
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("tokens right, %")
    axes.set_title("Copy task: accuracy on held-out sequences, decoded greedily")
    axes.grid(alpha=0.3)
    axes.legend(title="attention", loc="center right")
    figure.savefig(path)


def draw_alignment(attention, source, copy, weights, path):
    """The weights (T, S) of one sequence: where the model looked for each token written."""
    names = {END: "end", **{FIRST_SYMBOL + n: "abcdefghij"[n] for n in range(SYMBOLS)}}
    figure, axes = new_axes(7, 6)
    image = axes.imshow(weights, cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(source)), labels=[names.get(one, "?") for one in source])
    axes.set_yticks(range(len(copy)), labels=[names.get(one, "?") for one in copy])
    axes.set_xlabel("source, token read")
    axes.set_ylabel("copy, token written")
    axes.set_title(f"Copy task: attention weights, {attention}")
    figure.colorbar(image, label="weight")
    figure.savefig(path)


def new_axes(width, height):
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    return figure, figure.subplots()


def integer_from(lowest, highest=2**31 - 1):
    """An argparse type."""

    def integer(text):
        if not lowest <= int(text) <= highest:
            message = f"should be an integer from {lowest} to {highest}, not {text}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return integer


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n    python")[0])
    add = parser.add_argument
    text = (
        "sequence lengths, trained from the shortest up; a long one needs shorter ones before "
        f"it (default: {LENGTHS}, with --quick {QUICK_LENGTHS})"
    )
    add("--lengths", type=integer_from(2), nargs="+", metavar="L", help=text)
    text = "width of every GRU (default: %(default)s)"
    add("--units", type=integer_from(1), default=64, metavar="U", help=text)
    text = "which models to train (default: all of them)"
    add("--attention", choices=ATTENTIONS, default=ATTENTIONS, nargs="+", help=text)
    text = (
        f"training steps at lengths up to 40, of {BATCH} sequences each, and more in "
        f"proportion beyond (default: {STEPS}, with --quick {QUICK_STEPS})"
    )
    add("--steps", type=integer_from(1), metavar="N", help=text)
    text = "seed of weights and sequences (default: %(default)s)"
    add("--seed", type=integer_from(0), default=0, metavar="N", help=text)
    text = "folder for the pictures, made if it is not there (default: %(default)s)"
    add("--output", type=Path, default="outputs/copy_task", metavar="FOLDER", help=text)
    add("--quick", action="store_true", help="two short lengths, in under 90 seconds")
    args = parser.parse_args()
    args.lengths = sorted(set(args.lengths or (QUICK_LENGTHS if args.quick else LENGTHS)))
    args.steps = args.steps or (QUICK_STEPS if args.quick else STEPS)
    args.attention = list(dict.fromkeys(args.attention))
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --output: {error}")
    return args


def main():
    args = parse_arguments()
    started = time.perf_counter()
    drawn = max((length for length in args.lengths if length <= 20), default=args.lengths[0])
    cells = {}
    for attention in args.attention:
        for length, cell, example in train_through_lengths(attention, args):
            cells[attention, length] = cell
            print(
                f"{attention:8} | length {length:3} | {cell.tokens:6.2f} % of tokens | "
                f"{cell.sequences:6.2f} % of sequences | {cell.seconds:.0f} s of training",
                flush=True,
            )
            if example and length == drawn:
                path = args.output / f"alignment_{attention}.png"
                draw_alignment(attention, *example, path)
    draw_accuracy(cells, args, args.output / "accuracy.png")
    print_table(cells, args)
    print(f"\n{time.perf_counter() - started:.0f} s in all; pictures in {args.output}")


if __name__ == "__main__":
    main()
