"""What `Seq2Seq.generate` promises, on models with random weights."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_attention import (
    AttentionDecoder,
    BeamSearch,
    BiEncoder,
    GreedySearch,
    LuongAttention,
    RandomSampling,
    Seq2Seq,
)
from rows import array
from seq2seqs import (
    DECODERS,
    END,
    LENGTH,
    SOURCE,
    START,
    library_seq2seq,
    parts,
    seq2seq,
    teacher_forced,
)

SEARCHES = [
    GreedySearch(),
    BeamSearch(3, length_penalty=1.0),
    BeamSearch(3, n_best=2, coverage_penalty=0.2),
    RandomSampling(seed=3),
]
EVERY_SEARCH = pytest.mark.parametrize("search", SEARCHES, ids=lambda s: type(s).__name__)
op_by_op = pytest.mark.usefixtures("op_by_op")


def generate(model, source=SOURCE, search=None, max_length=LENGTH, **kwargs):
    return model.generate(source, search, max_length, verbose=0, **kwargs)


def assert_same(one, other, atol=1e-5):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_allclose(one.scores, other.scores, atol=atol)
    np.testing.assert_allclose(one.weights, other.weights, atol=atol)


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


def test_layers_trained_in_a_functional_model_generate_as_they_are():
    embed, encoder, embed_target, decoder, classify = parts()
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    memory, state = encoder(embed(source))
    outputs, _, _ = decoder(embed_target(target), memory, initial_state=state)
    functional = keras.Model((source, target), classify(outputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    functional.compile(keras.optimizers.Adam(0.03), loss)
    model = Seq2Seq(
        embed, encoder, embed_target, decoder, classify, start_token=START, end_token=END
    )
    before = generate(model)
    shifted = np.full((3, 4), START)
    functional.fit((SOURCE, shifted), np.full((3, 4), 5), epochs=20, verbose=0)
    after = generate(model)  # the same compiled graph, with what was learned since
    assert (after.scores != before.scores).all()
    np.testing.assert_array_equal(after.tokens[:, 0], 5)
    np.testing.assert_allclose(
        functional.predict((SOURCE, shifted), verbose=0),
        model.predict((SOURCE, shifted), verbose=0),
        atol=1e-6,
    )


def test_the_model_is_trained_saved_loaded_and_cloned_as_any_keras_model(tmp_path):
    model = library_seq2seq(name="whole")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.03), loss, weighted_metrics=["accuracy"])
    target = np.array([[START, 3, 4, 0], [START, 5, 0, 0], [START, 6, 7, 8]])
    wanted = np.array([[3, 4, END, 0], [5, END, 0, 0], [6, 7, 8, END]])
    history = model.fit((SOURCE, target), wanted, epochs=15, verbose=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    by_name = {"source": SOURCE, "target": target}
    np.testing.assert_array_equal(
        model.predict(by_name, verbose=0), model.predict((SOURCE, target), verbose=0)
    )
    generated = generate(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    clone = Seq2Seq.from_config(model.get_config())
    clone.load_weights(tmp_path / "model.weights.h5")
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for other in (loaded, clone, copy):
        other.run_eagerly = True
        assert_same(generate(other), generated)
        assert other.name == "whole"
    # The loss is a mean over real steps: padding more of them changes nothing.
    padded = [np.pad(one, ((0, 0), (0, 2))) for one in (target, wanted)]
    losses = [
        float(model.evaluate((SOURCE, a), b, verbose=0)[0])
        for a, b in ((target, wanted), padded)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_one_embedding_for_both_vocabularies_stays_one(tmp_path):
    embedding = layers.Embedding(13, 5, mask_zero=True)
    model = Seq2Seq(
        embedding,
        BiEncoder(layers.GRU(6), state_units=7),
        embedding,
        AttentionDecoder(layers.GRUCell(7), LuongAttention()),
        layers.Dense(13),
        start_token=START,
        end_token=END,
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.source_embedding is loaded.target_embedding
    assert len(loaded.weights) == len(model.weights)
    for model_ in (model, loaded):
        model_.run_eagerly = True
    assert_same(generate(loaded), generate(model))


@op_by_op
@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (SOURCE, {"max_length": 0}, "`max_length` should be a positive integer.*Fix"),
        (SOURCE, {"max_length": None}, "`max_length`"),
        (SOURCE, {"batch_size": 0}, "`batch_size` should be a positive integer"),
        ({"source": SOURCE}, {}, r"`source` should be ids \(B, S\) alone"),
        (SOURCE, {"search": BeamSearch}, "`search` should be a search.*parentheses"),
        (SOURCE, {"search": "greedy"}, "`search` should be a search"),
        (SOURCE, {"search": GreedySearch(min_length=8)}, "`min_length`.*max_length=7"),
        (SOURCE, {"search": GreedySearch(banned_tokens=[11])}, "`banned_tokens`.*0 to 10.*11"),
        (SOURCE + 9, {}, "`source` should be ids from 0 to 12.*received 13"),
        (-SOURCE, {}, "`source`.*received -3"),
        (SOURCE[0], {}, r"`source` should be ids \(B, S\).*\(5,\).*source\[None\]"),
        (SOURCE[:, :0], {}, r"`source`.*\(3, 0\)"),
        (SOURCE * 1.5, {}, "`source` should be integer ids.*float64"),
        ([[3, 4], [5]], {}, "`source`.*different lengths.*pad_sequences"),
        (SOURCE, {"prefix": [3] * LENGTH}, "`prefix` should be shorter.*max_length=8"),
        (SOURCE, {"prefix": [3, END]}, "`prefix`.*no end token"),
        (SOURCE, {"prefix": [START, 3]}, "`prefix` should have no start token"),
        (SOURCE, {"prefix": [[0, 3]] * 3}, "`prefix`.*padding on the right"),
        (SOURCE, {"prefix": [[3], [4]]}, r"`prefix`.*B=3.*\(2, 1\)"),
        (SOURCE, {"prefix": [11]}, "`prefix` should be ids from 0 to 10.*11"),
        (SOURCE, {"prefix": [1.5]}, "`prefix` should be integer ids"),
    ],
)
def test_what_makes_no_sense_is_refused(source, settings, message):
    model = seq2seq()
    with pytest.raises(ValueError, match=message):
        generate(model, source, **settings)


@pytest.mark.parametrize(
    ("changed", "tokens", "message"),
    [
        ({}, {"end_token": None}, "`end_token` should be a token id.*None"),
        ({}, {"end_token": 11}, "`end_token` should be ids from 0 to 10.*11"),
        ({}, {"start_token": 11}, "`start_token` should be ids from 0 to 10.*11"),
        ({}, {"start_token": 0}, "`start_token` should not be `pad_token`"),
        (
            {0: layers.Embedding(13, 5), 2: layers.Embedding(11, 4)},
            {"pad_token": 11},
            "`pad_token` should be ids from 0 to 10.*11",
        ),
        ({}, {"pad_token": 10}, "`source_embedding` masks id 0, but `pad_token` is 10.*Fix"),
        ({2: layers.Embedding(5, 4)}, {}, "`target_embedding` should know.*V=11.*knows 5"),
        ({3: layers.GRU(7)}, {}, "`decoder` should be an AttentionDecoder.*Fix"),
        ({4: layers.Dense(11, activation="softmax")}, {}, "`output_layer`.*logits.*softmax"),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_once(changed, tokens, message):
    chosen = [changed.get(index, part) for index, part in enumerate(parts())]
    tokens = {"start_token": START, "end_token": END, **tokens}
    with pytest.raises(ValueError, match=message):
        Seq2Seq(*chosen, **tokens)


def test_an_encoder_that_returns_no_state_is_refused():
    embed, _, *others = parts()
    with pytest.raises(ValueError, match="`encoder` should return memory.*return_state=True"):
        Seq2Seq(embed, layers.GRU(7), *others, start_token=START, end_token=END)


@op_by_op
def test_keras_s_own_recurrent_layer_may_be_the_encoder():
    embed, _, embed_target, _, classify = parts()
    encoder = layers.LSTM(7, return_sequences=True, return_state=True)
    decoder = AttentionDecoder(layers.LSTMCell(7), LuongAttention())
    tokens = {"start_token": START, "end_token": END}
    model = Seq2Seq(embed, encoder, embed_target, decoder, classify, **tokens)
    target = np.array([[START, 3, 4]] * 3)
    memory, *states = encoder(embed(SOURCE))
    outputs, _, _ = decoder(embed_target(target), memory, states, memory_mask=SOURCE != 0)
    wanted = array(classify(outputs))
    np.testing.assert_allclose(array(model((SOURCE, target))), wanted, atol=1e-6)


def test_a_call_without_a_target_says_what_to_do():
    with pytest.raises(ValueError, match=r"pair of source ids.*generate"):
        seq2seq()(SOURCE)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="ragged is TensorFlow's")
def test_a_ragged_source_is_refused_and_a_dataset_is_read():
    import tensorflow as tf

    model = seq2seq()
    with pytest.raises(TypeError, match=r"`source` should be a dense.*source.to_tensor\(\)"):
        generate(model, tf.ragged.constant([[3, 4], [5]]))
    dataset = tf.data.Dataset.from_tensor_slices(SOURCE).batch(2)
    assert_same(generate(model, dataset), generate(model))
    with pytest.raises(ValueError, match="`prefix` should come with an array"):
        generate(model, dataset, prefix=[3])
    target = np.full((3, LENGTH), START)  # of the shape that a forced prefix has
    training = tf.data.Dataset.from_tensor_slices(((SOURCE, target), target)).batch(2)
    with pytest.raises(ValueError, match=r"without targets.*dataset\.map"):
        generate(model, training)


@op_by_op
def test_a_prefix_may_be_ragged_where_the_end_token_is_the_padding():
    chosen = parts(mask_zero=False)
    model = Seq2Seq(*chosen, start_token=START, end_token=END, pad_token=END)
    model.run_eagerly = True
    tokens = generate(model, prefix=[[3, 4], [5, END], [END, END]]).tokens
    np.testing.assert_array_equal(tokens[0, :2], [3, 4])
    assert tokens[1, 0] == 5


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("change", ["lora", "layer", "model"])
def test_a_change_of_the_weights_themselves_reaches_the_compiled_graph(change):
    model = library_seq2seq()
    before = generate(model)
    if change == "lora":
        model.output_layer.enable_lora(2)
        model.output_layer.lora_kernel_b.assign(9.0 * np.eye(2, 11))
    elif change == "layer":
        model.output_layer.quantize("int8")
    else:
        model.quantize("int8")
    after = generate(model)
    assert (after.scores != before.scores).all()
    model.run_eagerly = True
    assert_same(after, generate(model))


def test_a_layer_shared_inside_two_parts_is_refused_by_the_config():
    embedding = layers.Embedding(13, 5, mask_zero=True)
    model = Seq2Seq(
        embedding,
        BiEncoder(layers.GRU(6), state_units=7),
        keras.Sequential([embedding, layers.Dropout(0.1)]),
        AttentionDecoder(layers.GRUCell(7), LuongAttention()),
        layers.Dense(13),
        start_token=START,
        end_token=END,
    )
    assert generate(model).tokens.shape == (3, LENGTH)
    with pytest.raises(ValueError, match="share a layer inside them.*Fix"):
        model.get_config()


def test_a_generator_knows_no_weights_but_the_model_s():
    model = library_seq2seq()
    count, names = len(model.weights), [layer.name for layer in model.layers]
    generator = model.generator(GreedySearch(), LENGTH)
    assert {id(w) for w in generator.weights} == {id(w) for w in model.weights}
    assert len(model.weights) == count
    assert [layer.name for layer in model.layers] == names
    assert model.generator(GreedySearch(), LENGTH) is generator
    assert model.generator(BeamSearch(2), LENGTH) is not generator
