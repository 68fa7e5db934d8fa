"""How fast does a model write? One table: tokens per second of generating.

One untrained model reads B sentences of S tokens and writes B sentences of L tokens:
Embedding(U), BiEncoder(GRU(U)), AttentionDecoder(GRUCell(U)), Dense(V). Its output layer
makes padding and the end token improbable, so that every path makes L tokens in every row.

    predict      the loop of the usual tutorials: a model that encodes, and one for a single
                 step whose `predict` is called once per token; argmax in NumPy
    torch N      an eager PyTorch loop with N threads, where PyTorch is installed: the same
                 architecture and weights, keys projected once, no gradients
    greedy       `Seq2Seq.generate` with GreedySearch()
    beam K       `Seq2Seq.generate` with BeamSearch(K)

All run in this process, in turn, so that noise of the machine meets all alike. Each has been
called once before: for tracing and compiling. Rates and ratios are of the minima: where
others use the machine as well, PyTorch's threads wait for one another, and its median says
little (on two cores it was up to thirty times the minimum).

    ms median, min  from source ids in NumPy to tokens in NumPy, encoder included.
    tokens/s        B * L / min. Of a beam only the tokens of its result count.
    x predict       tokens/s against the loop of `predict`.
    x torch         tokens/s against PyTorch, with the better number of threads.
    time/greedy     min against that of greedy search, so per sentence.
    same %          tokens equal to those of greedy search, the last left out: generate puts
                    the end token there. A tie that rounding decides otherwise shows here.
    first s         the first call: tracing, compiling and one run.

Then, on TensorFlow, how often a new length of the source has the graph traced again.

    python benchmarks/generate.py --attention luong --jit
"""

import argparse
import os
import sys
import time
from statistics import median
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_attention import (  # noqa: E402
    AttentionDecoder,
    BahdanauAttention,
    BiEncoder,
    LuongAttention,
    Seq2Seq,
)
from keras_attention.beam import BeamSearch  # noqa: E402
from keras_attention.generator import Generator  # noqa: E402
from keras_attention.search import GreedySearch  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

PAD, START, END, FIRST_SYMBOL = 0, 1, 2, 3
IMPROBABLE = -1e4
ATTENTIONS = ("bahdanau", "luong")
# Targets at the largest batch.
FASTER_THAN_PREDICT, FASTER_THAN_TORCH = ("at least", 20), ("at least", 2)
BEAM_TIME = ("at most", 3)
COLUMNS = {
    "B": ">3",
    "path": "<8",
    "ms median": ">9.1f",
    "ms min": ">8.1f",
    "tokens/s": ">8.0f",
    "x predict": ">9.2f",
    "x torch": ">7.2f",
    "time/greedy": ">11.2f",
    "same %": ">6.1f",
    "first s": ">7.2f",
}


def build_model(attention, units, vocabulary, jit):
    layers, embeddings = keras.layers, []
    for _ in range(2):
        embeddings.append(layers.Embedding(vocabulary, units, mask_zero=True))
    attend = BahdanauAttention(units) if attention == "bahdanau" else LuongAttention("general")
    model = Seq2Seq(
        embeddings[0],
        BiEncoder(layers.GRU(units)),
        embeddings[1],
        AttentionDecoder(layers.GRUCell(units), attend),
        layers.Dense(vocabulary),
        start_token=START,
        end_token=END,
        pad_token=PAD,
    )
    bias = np.zeros(vocabulary, "float32")
    bias[[PAD, END]] = IMPROBABLE
    model.output_layer.bias.assign(bias)
    if jit:
        model.compile(jit_compile=True)
    return model


def make_source(batch, steps, vocabulary):
    """Random ids (B, S), without padding."""
    random = np.random.default_rng(0)
    return random.integers(FIRST_SYMBOL, vocabulary, (batch, steps)).astype("int32")


def generate_with(search, model, length):
    def generate(source):
        return model.generate(
            source, search, max_length=length, batch_size=len(source), verbose=0
        )

    return generate


def tokens_with(search, model, length):
    """A path: what `generate` finds, checked to be of full length. Source to tokens (B, L)."""
    generate = generate_with(search, model, length)

    def path(source):
        found = generate(source)
        if (found.lengths != length).any():
            raise RuntimeError(f"expected {length} tokens in every row, got {found.lengths}")
        return found.tokens

    return path


def predict_path(model, units, length, jit):
    """The loop of the tutorials, of two functional models that share the layers."""
    source = keras.Input((None,), dtype="int32")
    memory, state, _ = model.encode(source)
    encode = keras.Model(source, [memory, *state])

    token = keras.Input((1,), dtype="int32")
    state = keras.Input((units,))
    memory = keras.Input((None, memory.shape[-1]))
    embedded = model.target_embedding(token)
    outputs, _, new_state = model.decoder(embedded, memory, initial_state=[state])
    step = keras.Model([token, state, memory], [model.output_layer(outputs), *new_state])
    if jit:
        encode.compile(jit_compile=True)
        step.compile(jit_compile=True)

    def path(source):
        batch = len(source)
        memory, state = encode.predict(source, batch_size=batch, verbose=0)
        token, tokens = np.full((batch, 1), START, "int32"), []
        ended = np.zeros((batch, 1), "bool")
        while len(tokens) < length and not ended.all():
            inputs = [token, state, memory]
            logits, state = step.predict(inputs, batch_size=batch, verbose=0)
            token = logits.argmax(axis=-1).astype("int32")
            ended |= token == END
            tokens.append(token)
        return np.concatenate(tokens, axis=1)

    return path


def numbers(variable):
    return torch.tensor(keras.ops.convert_to_numpy(variable))


def torch_linear(kernel, bias=None):
    """From a Keras kernel (in, out)."""
    layer = torch.nn.Linear(*kernel.shape, bias=bias is not None)
    layer.weight.data = kernel.T.contiguous()
    if bias is not None:
        layer.bias.data = numbers(bias)
    return layer


def copy_gates(cell, layer, suffix=""):
    """Keras keeps the gates as (update, reset, new), PyTorch as (reset, update, new)."""

    def reordered(x):  # (..., 3U) to (3U, ...)
        update, reset, new = x.movedim(-1, 0).chunk(3)
        return torch.cat([reset, update, new])

    input_bias, state_bias = numbers(cell.bias)
    values = {
        "weight_ih": numbers(cell.kernel),
        "weight_hh": numbers(cell.recurrent_kernel),
        "bias_ih": input_bias,
        "bias_hh": state_bias,
    }
    for name, value in values.items():
        getattr(layer, name + suffix).data = reordered(value)


class TorchGreedy:
    """The model in eager PyTorch, as one would write it by hand."""

    def __init__(self, model, units, length, threads):
        self.length, self.threads = length, threads
        self.source_embedding = numbers(model.source_embedding.embeddings)
        self.target_embedding = numbers(model.target_embedding.embeddings)
        self.encoder = torch.nn.GRU(units, units, batch_first=True, bidirectional=True)
        both = model.encoder.directions[0]
        copy_gates(both.forward_layer.cell, self.encoder, "_l0")
        copy_gates(both.backward_layer.cell, self.encoder, "_l0_reverse")
        bridge, output = model.encoder.bridges[0], model.output_layer
        self.bridge = torch_linear(numbers(bridge.kernel), bridge.bias)
        decoder, attention = model.decoder, model.decoder.attention
        self.cell = torch.nn.GRUCell(decoder.cell_width, units)
        copy_gates(decoder.cell, self.cell)
        self.query = numbers(attention.query_projection.kernel)
        self.before = decoder.attend == "before"  # Bahdanau
        if self.before:
            self.query = torch_linear(self.query)
            self.keys = torch_linear(numbers(attention.key_projection.kernel))
            self.vector = numbers(attention.score_vector)
        else:
            self.keys = torch_linear(self.query.T)  # q W h = q (h W^T)
            self.projection = torch_linear(numbers(decoder.attentional_projection.kernel))
        self.output = torch_linear(numbers(output.kernel), output.bias)

    @torch.no_grad() if torch else staticmethod
    def __call__(self, source):
        torch.set_num_threads(self.threads)
        source = torch.from_numpy(source).long()
        memory, last = self.encoder(
            torch.nn.functional.embedding(source, self.source_embedding)
        )
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=-1)))
        keys, masked = self.keys(memory), source == PAD
        token = torch.full((len(source),), START)
        ended, tokens = torch.zeros(len(source), dtype=torch.bool), []
        while len(tokens) < self.length and not ended.all():
            inputs = torch.nn.functional.embedding(token, self.target_embedding)
            step = self.attend_first if self.before else self.attend_last
            output, state = step(inputs, state, memory, keys, masked)
            token = self.output(output).argmax(dim=-1)
            ended |= token == END
            tokens.append(token)
        return torch.stack(tokens, dim=1).numpy()

    def attend_first(self, inputs, state, memory, keys, masked):
        energies = torch.tanh(self.query(state).unsqueeze(1) + keys)
        context = self.context(energies @ self.vector, memory, masked)
        state = self.cell(torch.cat([inputs, context], dim=-1), state)
        return state, state

    def attend_last(self, inputs, state, memory, keys, masked):
        state = self.cell(inputs, state)
        scores = torch.bmm(keys, state.unsqueeze(2)).squeeze(2)
        context = self.context(scores, memory, masked)
        return torch.tanh(self.projection(torch.cat([context, state], dim=-1))), state

    def context(self, scores, memory, masked):
        weights = torch.softmax(scores.masked_fill(masked, -torch.inf), dim=-1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Case:
    """One row of the table: a path, its times and its tokens."""

    def __init__(self, name, path, source, repeats):
        self.name, self.path, self.source, self.repeats = name, path, source, repeats
        self.times = []
        self.first_seconds, self.tokens = self.timed_call()

    def timed_call(self):
        start = time.perf_counter()
        tokens = self.path(self.source)
        return time.perf_counter() - start, tokens

    @property
    def best(self):
        return min(self.times)


def measure(batch, paths, arguments):
    """The cases of one batch size, by name."""
    source = make_source(batch, arguments.source, arguments.vocabulary)
    cases = {}
    for name, path in paths.items():
        progress(f"B={batch}, {name}: first call")
        repeats = arguments.slow_repeats if name == "predict" else arguments.repeats
        cases[name] = Case(name, path, source, repeats)
    for number in range(arguments.repeats):
        progress(f"B={batch}: round {number + 1} of {arguments.repeats}")
        for case in cases.values():
            if number < case.repeats:
                case.times.append(case.timed_call()[0])
    return cases


def best(cases, name):
    """The least time of the paths whose name begins so; NaN where there are none."""
    times = [case.best for case in cases.values() if case.name.startswith(name)]
    return min(times, default=float("nan"))


def case_row(case, cases, batch, length):
    same = 100 * (case.tokens == cases["greedy"].tokens)[:, :-1].mean()
    return (
        batch,
        case.name,
        1000 * median(case.times),
        1000 * case.best,
        batch * length / case.best,
        best(cases, "predict") / case.best,
        best(cases, "torch") / case.best,
        case.best / best(cases, "greedy"),
        same,
        case.first_seconds,
    )


def print_traces(model, arguments):
    """How often TensorFlow traces the generator while only the source's length changes."""
    seconds = []
    with mock.patch.object(
        Generator, "call", autospec=True, side_effect=Generator.call
    ) as traced:
        # A generator of its own, which has not seen any length.
        generate = generate_with(GreedySearch(), model, arguments.tokens + 1)
        for steps in arguments.lengths:
            progress(f"traces: S={steps}")
            source = make_source(2, steps, arguments.vocabulary)
            start = time.perf_counter()
            generate(source)
            seconds.append(f"{time.perf_counter() - start:.2f}")
    lengths = ", ".join(map(str, arguments.lengths))
    print(f"\n{traced.call_count} traces for sources of {lengths} tokens;", end=" ")
    print(f"seconds of each first call: {', '.join(seconds)}.")


def print_targets(batch, cases, beam):
    """The goals, next to what was measured at the largest batch."""
    greedy = best(cases, "greedy")
    lines = [
        (
            "greedy against predict, tokens/s",
            best(cases, "predict") / greedy,
            *FASTER_THAN_PREDICT,
        ),
        ("greedy against PyTorch, tokens/s", best(cases, "torch") / greedy, *FASTER_THAN_TORCH),
        (f"{beam} against greedy, time per sentence", best(cases, beam) / greedy, *BEAM_TIME),
    ]
    print(f"\nTargets at B={batch}:")
    for text, ratio, bound, target in lines:
        print(f"  {text}: {ratio:.2f} ({bound} {target})")


def progress(text):
    print(text, file=sys.stderr, flush=True)


def print_row(values, formats):
    cells = [format(value, one) for value, one in zip(values, formats, strict=True)]
    print("| " + " | ".join(cells) + " |", flush=True)


def parse_positive(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer, but got {text!r}")
    return int(text)


def parse_arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    full = {"units": 256, "source": 40, "tokens": 40, "vocabulary": 60, "repeats": 15}
    full |= {"slow_repeats": 2, "beam": 5, "batches": [1, 64], "lengths": [37, 40, 43, 50]}
    tiny = {"units": 8, "source": 7, "tokens": 6, "vocabulary": 13, "repeats": 2}
    tiny |= {"slow_repeats": 1, "beam": 3, "batches": [1, 3], "lengths": [5, 6, 7]}
    helps = {
        "units": "U, of every part",
        "source": "S, tokens of a source",
        "tokens": "L, tokens of an output",
        "vocabulary": "V, of source and target",
        "repeats": "measured calls of each path",
        "slow_repeats": "measured calls of the loop of predict",
        "beam": "K, the beam's width",
        "batches": "B, one or more",
        "lengths": "of sources, whose traces are counted",
    }
    add("--attention", choices=ATTENTIONS, default="bahdanau", help="(default: bahdanau)")
    add("--jit", action="store_true", help="compile(jit_compile=True), of every Keras model")
    add("--quick", action="store_true", help="tiny sizes, two calls: does it run?")
    for name, text in helps.items():
        several = {"nargs": "+"} if isinstance(full[name], list) else {}
        default = " ".join(map(str, full[name])) if several else full[name]
        text = f"{text} (default: {default})"
        add(f"--{name.replace('_', '-')}", type=parse_positive, help=text, **several)
    arguments = parser.parse_args()
    for name, value in (tiny if arguments.quick else full).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.vocabulary <= FIRST_SYMBOL:
        parser.error(f"argument --vocabulary: expected more than {FIRST_SYMBOL}")
    return arguments


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(0)
    units, length, jit = arguments.units, arguments.tokens, arguments.jit
    model = build_model(arguments.attention, units, arguments.vocabulary, jit)
    beam = f"beam {arguments.beam}"
    paths = {"predict": predict_path(model, units, length, jit)}
    if torch is not None:
        for threads in sorted({1, torch.get_num_threads()}):
            paths[f"torch {threads}"] = TorchGreedy(model, units, length, threads)
    paths["greedy"] = tokens_with(GreedySearch(), model, length)
    paths[beam] = tokens_with(BeamSearch(arguments.beam), model, length)

    sizes = f"U={units}, S={arguments.source}, L={length}, V={arguments.vocabulary}"
    print(
        f"{keras.backend.backend()}, {arguments.attention}, {sizes}, jit_compile={jit},", end=""
    )
    print(
        f" {os.cpu_count()} cores, PyTorch {torch.__version__ if torch else 'not installed'}\n"
    )
    widths = [one.split(".")[0] for one in COLUMNS.values()]
    for heading in (COLUMNS, ["-" * int(one[1:]) for one in widths]):
        print_row(heading, widths)
    for batch in arguments.batches:
        cases = measure(batch, paths, arguments)
        for case in cases.values():
            print_row(case_row(case, cases, batch, length), COLUMNS.values())
    if keras.backend.backend() == "tensorflow":
        print_traces(model, arguments)
    print_targets(batch, cases, beam)


if __name__ == "__main__":
    main()
