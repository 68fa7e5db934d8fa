"""`Seq2Seq` as a Keras model: its layers are shared, trained, changed, saved and cloned."""

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
    Seq2Seq,
)
from rows import array
from seq2seqs import END, LENGTH, SOURCE, START, assert_same, generate, library_seq2seq, parts

op_by_op = pytest.mark.usefixtures("op_by_op")


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
