"""What `Seq2Seq` and `generate` refuse, and what they say then."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_attention import BeamSearch, GreedySearch, Seq2Seq
from seq2seqs import END, LENGTH, SOURCE, START, assert_same, generate, parts, seq2seq

op_by_op = pytest.mark.usefixtures("op_by_op")


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
