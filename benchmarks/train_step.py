"""What does attention cost in training? One table: time and memory of a training step.

Every model reads B sentences of S tokens and writes B sentences of T = S tokens, over a
vocabulary of 1000: Embedding(U), BiEncoder(GRU(U)), the row's decoder, Dense(1000), Adam.

    none            keras GRU(U), started from the encoder's state
    bahdanau        AttentionDecoder(GRUCell(U), BahdanauAttention(U))
    luong           AttentionDecoder(GRUCell(U), LuongAttention("general"))
    luong-feeding   the same with input_feeding=True
    keras-additive  GRU(U), keras.layers.AdditiveAttention, Dense(U, "tanh") of [c; s]
    keras-dot       GRU(U), keras.layers.Attention, Dense(U, "tanh") of [c; s]

Keras's attentions want keys as wide as the query: they get Dense(U)(memory) as key and the
memory as value. They attend after the recurrence, so they compare with luong.

Each model lives in a process of its own, and they take steps in turn, so that noise of the
machine meets all alike. All are alive together: take a few with --models if memory is short.

    ms median, min  of `train_on_batch`, with the transfer of one batch and the loss back.
    cpu ms          the median processor time of a step, over all cores. On a machine that
                    others use as well, it is steadier than the clock.
    ratio           of the ms medians, to the first model (`none`, unless left out).
    peak MB         growth of the process's peak resident memory (`ru_maxrss`) from after the
                    imports to the last step: weights, activations, gradients and what the
                    compiler needs. It does not see the memory of a GPU.
    compile s       the first step: tracing, compiling and one run. On TensorFlow, "auto"
                    compiles with XLA only where there is a GPU or TPU.

    python benchmarks/train_step.py --steps 20
    KERAS_BACKEND=jax python benchmarks/train_step.py --models none bahdanau
"""

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial
from statistics import median

if __name__ != "__main__":
    # Only in the measured processes: one that starts another passes its peak memory on.
    import resource

    import keras
    import numpy as np

    from keras_attention import AttentionDecoder, BahdanauAttention, BiEncoder, LuongAttention

VOCABULARY = 1000
WARM_UP = 2
SIZES = ["64x40x256", "32x200x256"]
JIT = {"auto": "auto", "true": True, "false": False}
COLUMNS = {
    "model": "<14",
    "B": ">3",
    "S=T": ">4",
    "U": ">4",
    "ms median": ">9.1f",
    "ms min": ">8.1f",
    "cpu ms": ">8.1f",
    "ratio": ">5.2f",
    "peak MB": ">8.0f",
    "compile s": ">9.1f",
}


def plain(inputs, memory, state, units):
    return keras.layers.GRU(units, return_sequences=True)(inputs, initial_state=state)


def bahdanau(inputs, memory, state, units):
    decoder = AttentionDecoder(keras.layers.GRUCell(units), BahdanauAttention(units))
    return decoder(inputs, memory, initial_state=state)[0]


def luong(inputs, memory, state, units, input_feeding=False):
    cell = keras.layers.GRUCell(units)
    decoder = AttentionDecoder(cell, LuongAttention("general"), input_feeding=input_feeding)
    return decoder(inputs, memory, initial_state=state)[0]


def by_keras(inputs, memory, state, units, attention):
    states = plain(inputs, memory, state, units)
    key = keras.layers.Dense(units, use_bias=False)(memory)
    context = getattr(keras.layers, attention)()([states, memory, key])
    both = keras.layers.Concatenate()([context, states])
    return keras.layers.Dense(units, activation="tanh", use_bias=False)(both)


DECODERS = {
    "none": plain,
    "bahdanau": bahdanau,
    "luong": luong,
    "luong-feeding": partial(luong, input_feeding=True),
    "keras-additive": partial(by_keras, attention="AdditiveAttention"),
    "keras-dot": partial(by_keras, attention="Attention"),
}


def build_model(name, units, masked, jit):
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    embed = [keras.layers.Embedding(VOCABULARY, units, mask_zero=masked) for _ in range(2)]
    memory, state = BiEncoder(keras.layers.GRU(units))(embed[0](source))
    outputs = DECODERS[name](embed[1](target), memory, state, units)
    model = keras.Model([source, target], keras.layers.Dense(VOCABULARY)(outputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit)
    return model


def make_batch(batch, steps, masked):
    """Random ids (B, S): source, target and label; if masked, padded on the right."""
    random = np.random.default_rng(0)
    ids = random.integers(1, VOCABULARY, (batch, steps)).astype("int32")
    if masked:
        lengths = random.integers(steps // 2 + 1, steps + 1, (batch, 1))
        ids = np.where(np.arange(steps) < lengths, ids, 0)
    return [ids, ids], ids


def peak_megabytes():
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measured_process(connection, name, size, masked, jit):
    """Warms a model up, then takes one step per True that it receives."""
    before = peak_megabytes()
    batch, steps, units = size
    model = build_model(name, units, masked, jit)
    x, y = make_batch(batch, steps, masked)

    def timed_step():
        clock, cpu = time.perf_counter(), time.process_time()
        model.train_on_batch(x, y)
        return 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - cpu)

    warm_up = [timed_step() for _ in range(1 + WARM_UP)]
    connection.send(warm_up[0][0] / 1000)
    while connection.recv():
        connection.send(timed_step())
    connection.send(peak_megabytes() - before)


class MeasuredModel:
    """The near end of a `measured_process`."""

    def __init__(self, name, size, masked, jit):
        context = multiprocessing.get_context("spawn")
        self.name, self.size, self.times = name, size, []
        self.connection, far_end = context.Pipe()
        arguments = (far_end, name, size, masked, JIT[jit])
        self.process = context.Process(target=measured_process, args=arguments, daemon=True)
        self.process.start()
        far_end.close()
        self.compile_seconds = self.receive()

    def receive(self):
        try:
            return self.connection.recv()
        except EOFError:
            sys.exit(f"{self.name}: its process ended early; the reason stands above.")

    def step(self):
        self.connection.send(True)
        self.times.append(self.receive())

    def finish(self):
        self.connection.send(False)
        self.peak = self.receive()
        self.process.join()

    def row(self, base):
        clock, cpu = zip(*self.times, strict=True)
        ratio = median(clock) / median(one for one, _ in base.times)
        times = (median(clock), min(clock), median(cpu), ratio)
        return (self.name, *self.size, *times, self.peak, self.compile_seconds)


def measure(size, arguments):
    """The rows of one size."""
    models = []
    for name in arguments.models:
        progress(f"{name}: first steps")
        models.append(MeasuredModel(name, size, arguments.masked, arguments.jit))
    for number in range(arguments.steps):
        progress(f"step {number + 1} of {arguments.steps}")
        for model in models:
            model.step()
    for model in models:
        model.finish()
    return [model.row(models[0]) for model in models]


def progress(text):
    print(text, file=sys.stderr, flush=True)


def print_row(values, formats):
    cells = [format(value, one) for value, one in zip(values, formats, strict=True)]
    print("| " + " | ".join(cells) + " |", flush=True)


def parse_size(text):
    numbers = text.split("x")
    if len(numbers) != 3 or not all(one.isdecimal() and int(one) for one in numbers):
        raise argparse.ArgumentTypeError(f"expected BxSxU, as 64x40x256, but got {text!r}")
    return tuple(int(one) for one in numbers)


def parse_steps(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer, but got {text!r}")
    return int(text)


def parse_arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--sizes", nargs="+", type=parse_size, help=f"BxSxU each (default: {' '.join(SIZES)})")
    add("--steps", type=parse_steps, help="measured steps per model (default: 20)")
    add("--jit", choices=JIT, default="auto", help="jit_compile of compile() (default: auto)")
    add("--models", nargs="+", choices=DECODERS, default=list(DECODERS), help="which rows")
    add("--masked", action="store_true", help="pad sentences and mask the padding")
    add("--quick", action="store_true", help="tiny size, two steps: does it run?")
    arguments = parser.parse_args()
    sizes = ["4x5x8"] if arguments.quick else SIZES
    arguments.sizes = arguments.sizes or [parse_size(text) for text in sizes]
    arguments.steps = arguments.steps or (2 if arguments.quick else 20)
    return arguments


def main():
    arguments = parse_arguments()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    print(f"{backend}, jit_compile={arguments.jit}, {os.cpu_count()} cores\n")
    widths = [one.split(".")[0] for one in COLUMNS.values()]
    for heading in (COLUMNS, ["-" * int(one[1:]) for one in widths]):
        print_row(heading, widths)
    for size in arguments.sizes:
        for row in measure(size, arguments):
            print_row(row, COLUMNS.values())


if __name__ == "__main__":
    main()
