"""What `Seq2Seq.generate` promises, on models with random weights."""

import keras
import numpy as np
import pytest

from keras_attention import AttentionDecoder, BeamSearch, GreedySearch, RandomSampling, Seq2Seq
from rows import array
from seq2seqs import (
    DECODERS,
    END,
    LENGTH,
    SOURCE,
    START,
    assert_same,
    generate,
    parts,
    seq2seq,
    teacher_forced,
)

op_by_op = pytest.mark.usefixtures("op_by_op")


SEARCHES = [
    GreedySearch(),
    BeamSearch(3, length_penalty=1.0),
    BeamSearch(3, n_best=2, coverage_penalty=0.2),
    RandomSampling(seed=3),
]
EVERY_SEARCH = pytest.mark.parametrize("search", SEARCHES, ids=lambda s: type(s).__name__)


def each_output(generated):
    """(row, tokens, length, score, weights) of every output, with n-best or without."""
    for row in range(len(generated.tokens)):
        tokens, lengths, scores, weights = (one[row] for one in generated)
        if tokens.ndim == 1:
            yield row, tokens, lengths, scores, weights
        else:
            for place in zip(tokens, lengths, scores, weights, strict=True):
                yield row, *place


@op_by_op
@pytest.mark.parametrize("decoder", DECODERS, ids="-".join)
def test_greedy_is_the_argmax_of_the_whole_model_token_by_token(decoder):
    model = seq2seq(*decoder)
    generated = generate(model)
    tokens = np.zeros((3, LENGTH), int)
    for step in range(LENGTH):
        log_probs, weights = teacher_forced(model, SOURCE, tokens)
        log_probs[:, :, 0] = -np.inf  # padding is no output
        tokens[:, step] = log_probs[:, step].argmax(axis=-1)
    tokens[:, -1] = END
    for row, found, length, score, shown in each_output(generated):
        wanted = list(tokens[row]).index(END) + 1
        assert length == wanted
        np.testing.assert_array_equal(found[:wanted], tokens[row, :wanted])
        np.testing.assert_array_equal(found[wanted:], 0)
        total = sum(log_probs[row, t, tokens[row, t]] for t in range(wanted))
        assert score == pytest.approx(total, abs=1e-4)
        np.testing.assert_allclose(
            shown[..., :wanted, :], weights[row][..., :wanted, :], atol=1e-5
        )
        assert (shown[..., wanted:, :] == 0).all()


@op_by_op
@EVERY_SEARCH
@pytest.mark.parametrize("decoder", [DECODERS[0], DECODERS[3]], ids="-".join)
def test_weights_and_scores_are_those_of_the_tokens_returned(decoder, search):
    model = seq2seq(*decoder)
    generated = generate(model, search=search)
    for row, tokens, length, score, shown in each_output(generated):
        log_probs, weights = teacher_forced(model, SOURCE[row : row + 1], tokens[None])
        np.testing.assert_allclose(
            shown[..., :length, :], weights[0][..., :length, :], atol=1e-5
        )
        np.testing.assert_allclose(shown[..., :length, :].sum(axis=-1), 1, atol=1e-5)
        assert (shown[..., SOURCE[row] == 0] == 0).all()
        assert tokens[length - 1] == END
        assert (tokens[: length - 1] != END).all()
        assert (tokens[length:] == 0).all()
        total = sum(log_probs[0, t, tokens[t]] for t in range(length))
        if isinstance(search, BeamSearch):
            coverage = weights[0][..., :length, :]
            coverage = coverage.mean(axis=0) if coverage.ndim == 3 else coverage
            coverage = coverage.sum(axis=0)[SOURCE[row] != 0]
            total /= length**search.length_penalty
            total += search.coverage_penalty * np.log(np.clip(coverage, 1e-6, 1)).sum()
        assert score == pytest.approx(total, abs=1e-4)


@op_by_op
@EVERY_SEARCH
def test_padding_batches_and_their_order_change_nothing(search):
    model = seq2seq("general", "gru", "feeding")
    whole = generate(model, search=search)
    if not isinstance(search, RandomSampling):  # there the numbers go by row and batch
        for row in range(3):
            assert_same(
                generate(model, SOURCE[row : row + 1], search),
                type(whole)(*(one[row : row + 1] for one in whole)),
            )
        assert_same(generate(model, search=search, batch_size=2), whole)
    for left, right in ((0, 3), (2, 0), (1, 1)):
        padded = np.pad(SOURCE, ((0, 0), (left, right)))
        found = generate(model, padded, search)
        shown = found.weights[..., left : left + SOURCE.shape[1]]
        assert_same(found._replace(weights=shown), whole)


@EVERY_SEARCH
def test_compiled_is_eager(search):
    model = seq2seq(eager=False)
    compiled = generate(model, search=search)
    again = generate(model, search=search)
    assert_same(compiled, again, atol=0)
    model.compile(run_eagerly=True)
    assert_same(compiled, generate(model, search=search))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="retracing is TensorFlow's")
def test_lengths_that_change_trace_twice_at_most_and_xla_agrees(monkeypatch):
    model = seq2seq(eager=False)
    calls, generator = [], model.generator(BeamSearch(2), LENGTH)
    call = type(generator).call
    monkeypatch.setattr(
        type(generator), "call", lambda self, x: calls.append(1) or call(self, x)
    )
    for steps in (5, 6, 8, 9, 7):
        found = generate(model, np.pad(SOURCE, ((0, 0), (0, steps - 5))), BeamSearch(2))
    assert 1 <= len(calls) <= 2
    model.compile(jit_compile=True)
    assert model.generator(BeamSearch(2), LENGTH).jit_compile
    assert_same(generate(model, np.pad(SOURCE, ((0, 0), (0, 2))), BeamSearch(2)), found)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="its graphs generalise")
@EVERY_SEARCH
def test_sources_of_one_row_may_have_any_length_one_after_the_other(search):
    model = seq2seq("heads", "simple", "feeding", eager=False)
    eager = seq2seq("heads", "simple", "feeding")
    for steps in (5, 4, 3, 5):
        source = SOURCE[:1, :steps]
        found, wanted = (generate(one, source, search) for one in (model, eager))
        assert_same(found, wanted)


@op_by_op
@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(2)], ids=str)
def test_the_loop_stops_once_every_row_is_finished(search, monkeypatch):
    steps, step = [], AttentionDecoder.step
    monkeypatch.setattr(AttentionDecoder, "step", lambda *args: steps.append(1) or step(*args))
    generated = generate(seq2seq(end_bias=50.0), search=search, max_length=99)
    np.testing.assert_array_equal(generated.lengths, 1)
    assert len(steps) == 1


@op_by_op
def test_a_seed_gives_the_same_samples_and_no_seed_new_ones():
    model = seq2seq(scale=0.1, end_bias=-9.0)
    source = np.repeat(SOURCE, 7, axis=0)
    seeded = [generate(model, source, RandomSampling(seed=5)) for _ in range(2)]
    assert_same(*seeded, atol=0)
    assert (generate(model, source, RandomSampling(seed=6)).tokens != seeded[0].tokens).any()
    fresh = [generate(model, source, RandomSampling()) for _ in range(2)]
    assert (fresh[0].tokens != fresh[1].tokens).any()


@op_by_op
@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(2, n_best=2)], ids=str)
def test_a_prefix_is_what_every_output_begins_with(search):
    model = seq2seq()
    shared = generate(model, search=search, prefix=[5, 4])
    tokens = shared.tokens.reshape(3, -1, LENGTH)
    assert (tokens[:, :, :2] == [5, 4]).all()
    rows = generate(model, search=search, prefix=[[5, 4], [8, 0], [0, 0]])
    free = generate(model, search=search)
    np.testing.assert_array_equal(rows.tokens[0], shared.tokens[0])
    assert (rows.tokens[1].reshape(-1, LENGTH)[:, 0] == 8).all()
    np.testing.assert_array_equal(rows.tokens[2], free.tokens[2])
    for row, found, length, score, _ in each_output(rows):
        log_probs, _ = teacher_forced(model, SOURCE[row : row + 1], found[None])
        total = sum(log_probs[0, t, found[t]] for t in range(length))
        assert score == pytest.approx(total, abs=1e-4)


@op_by_op
def test_the_mask_is_of_what_is_not_the_pad_token_where_the_embedding_makes_none():
    model = seq2seq(mask_zero=False, pad_token=10)
    source = np.where(SOURCE == 0, 10, SOURCE)
    whole = generate(model, source)
    assert (whole.weights[1, :, 2:] == 0).all()
    alone = generate(model, source[1:2, :2])
    np.testing.assert_array_equal(alone.tokens, whole.tokens[1:2])
    assert set(whole.tokens[1][whole.lengths[1] :]) <= {10}
    target = np.array([[START, 3, 4], [START, 5, 10], [START, 10, 10]])
    spoiled = np.where(target == 10, 7, target)
    logits = [array(model((source, one))) for one in (target, spoiled)]
    np.testing.assert_array_equal(logits[0][target != 10], logits[1][target != 10])


@op_by_op
def test_rows_of_padding_and_no_rows_have_the_results_that_are_documented():
    model = seq2seq("heads", "gru", "after")
    search = BeamSearch(3, n_best=2)
    whole = generate(model, search=search)
    nothing = generate(model, SOURCE[:0], search)
    assert [one.shape for one in nothing] == [(0, *one.shape[1:]) for one in whole]
    assert [one.dtype for one in nothing] == [one.dtype for one in whole]
    empty = generate(model, np.zeros((1, 3), "int32"), search)
    assert (empty.weights == 0).all()
    assert np.isfinite(empty.scores).all()
    wider = generate(model, np.zeros((1, 5), "int32"), search)
    np.testing.assert_array_equal(empty.tokens, wider.tokens)


@op_by_op
def test_half_precision_generates_with_float32_log_probabilities():
    keras.config.set_dtype_policy("mixed_float16")
    model = seq2seq()
    assert model.output_layer.compute_dtype == "float16"
    generated = generate(model, search=BeamSearch(2))
    for row, tokens, length, score, _ in each_output(generated):
        log_probs, _ = teacher_forced(model, SOURCE[row : row + 1], tokens[None])
        total = sum(log_probs[0, t, tokens[t]] for t in range(length))
        assert score == pytest.approx(total, abs=0.05)


@op_by_op
def test_a_prefix_may_be_ragged_where_the_end_token_is_the_padding():
    chosen = parts(mask_zero=False)
    model = Seq2Seq(*chosen, start_token=START, end_token=END, pad_token=END)
    model.run_eagerly = True
    tokens = generate(model, prefix=[[3, 4], [5, END], [END, END]]).tokens
    np.testing.assert_array_equal(tokens[0, :2], [3, 4])
    assert tokens[1, 0] == 5
