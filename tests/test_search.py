"""Searches on models without a network: what comes out is worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from keras import ops

import reference
from keras_attention import BeamSearch, GNMTPenalty, GreedySearch, RandomSampling
from scripts import END, Script, beam, random_script

pytestmark = pytest.mark.usefixtures("op_by_op")

W1, W2 = 2, 3
SPELLED = {END: "eos", W1: "w1", W2: "w2"}

# Next-token probabilities by prefix, of eos, an unknown token, w1 and w2, for two sentences.
FIRST = {
    (): [0, 0, 0.9, 0.1],
    (W1,): [1, 0, 0, 0],
    (W2,): [0, 0, 0.9, 0.1],
    (W2, W1): [0, 0, 0.1, 0.9],
    (W2, W2): [0.6, 0, 0.2, 0.2],
    (W2, W1, W2): [1, 0, 0, 0],
    (W2, W1, W1): [1, 0, 0, 0],
}
SECOND = {
    (): [0, 0, 0.7, 0.3],
    (W1,): [0.25, 0, 0.35, 0.4],
    (W2,): [0, 0, 0.1, 0.9],
    (W2, W2): [0.01, 0, 0, 0.99],
    (W1, W2): [0.6, 0, 0.4, 0],
    (W2, W2, W2): [0.1, 0, 0.5, 0.4],
    (W1, W2, W1): [1, 0, 0, 0],
}


def one_hot_by(prefix):
    """Attention that tells which tokens a hypothesis has: 0, or 1 after w1, 2 after w2."""
    return np.eye(3)[prefix[-1] - 1 if prefix else 0]


CASES = Script(
    {
        (sentence, prefix): (probabilities, one_hot_by(prefix))
        for sentence, table in enumerate((FIRST, SECOND))
        for prefix, probabilities in table.items()
    },
    sentences=2,
)


def found(search, script=CASES, max_length=4, **task):
    results = search.run(script.task(max_length, **task))
    return type(results)(*(ops.convert_to_numpy(one) for one in results))


def spelled(tokens):
    return [SPELLED[token] for token in tokens if token >= 0]


def spell(text):
    return text.split()


@pytest.mark.parametrize(
    ("alpha", "first", "second"),
    [
        (1, ["w1 eos", "w2 w1 w2 eos"], ["w1 w2 w1 eos", "w1 w2 eos"]),
        (0, ["w1 eos", "w2 w1 w2 eos"], ["w1 w2 eos", "w1 w2 w1 eos"]),
        (0.6, ["w1 eos", "w2 w1 w2 eos"], ["w1 w2 eos", "w1 w2 w1 eos"]),
        (5, ["w2 w1 w2 eos"], ["w1 w2 w1 eos"]),
    ],
)
def test_a_later_hypothesis_wins_where_the_length_penalty_says_so(alpha, first, second):
    results = found(BeamSearch(2, n_best=2, length_penalty=alpha))
    probabilities = {
        "w1 eos": 0.9,
        "w2 w1 w2 eos": 0.1 * 0.9 * 0.9,
        "w1 w2 eos": 0.7 * 0.4 * 0.6,
        "w1 w2 w1 eos": 0.7 * 0.4 * 0.4,
    }
    for row, wanted in enumerate((first, second)):
        for place, text in enumerate(wanted):
            tokens = spell(text)
            assert spelled(results.tokens[row, place]) == tokens
            assert results.lengths[row, place] == len(tokens)
            score = math.log(probabilities[text]) / len(tokens) ** alpha
            assert results.scores[row, place] == pytest.approx(score, abs=1e-6)


def test_the_last_token_is_forced_to_be_the_end():
    tokens = found(BeamSearch(2, n_best=2), max_length=3).tokens
    assert [spelled(one) for one in tokens[0]] == [spell("w1 eos"), spell("w2 w2 eos")]
    assert [spelled(one) for one in tokens[1]] == [spell("w1 w2 eos"), spell("w2 w2 eos")]


def test_weights_follow_a_hypothesis_through_every_slot_it_was_in():
    results = found(BeamSearch(2, n_best=2, length_penalty=1))
    for row, place in itertools.product(range(2), range(2)):
        tokens = [int(t) for t in results.tokens[row, place] if t >= 0]
        wanted = [one_hot_by(tokens[:i]) for i in range(len(tokens))]
        wanted += [np.zeros(3)] * (4 - len(tokens))
        np.testing.assert_array_equal(results.weights[row, place], wanted)


SEARCHES = [
    BeamSearch(3, n_best=3),
    BeamSearch(2, n_best=2, length_penalty=1.0),
    BeamSearch(5, n_best=4, length_penalty=GNMTPenalty(0.7), min_length=3),
    BeamSearch(3, n_best=3, coverage_penalty=0.3),
    BeamSearch(3, n_best=3, no_repeat_ngram=1),
    BeamSearch(4, n_best=3, no_repeat_ngram=2, banned_tokens=(2,), length_penalty=0.5),
    BeamSearch(2, n_best=1, banned_tokens=(1, 3, 2)),
    BeamSearch(2, length_penalty=np.float64(0.7), coverage_penalty=np.float64(0.2), n_best=2),
    BeamSearch(2, length_penalty=lambda length: 1.0 + length, n_best=2),
]


@pytest.mark.parametrize("search", SEARCHES, ids=range(len(SEARCHES)))
@pytest.mark.parametrize("seed", range(2))
def test_beams_are_those_of_the_plain_search_on_lists(search, seed):
    script = random_script(vocabulary=4, depth=5, steps=3, seed=seed)
    results = found(search, script, max_length=5)
    for sentence in range(2):
        wanted = beam(script, sentence, search, 5)[: search.n_best]
        for place, (score, tokens) in enumerate(wanted):
            assert tuple(results.tokens[sentence, place][: len(tokens)]) == tokens
            assert results.lengths[sentence, place] == len(tokens)
            assert results.scores[sentence, place] == pytest.approx(score, abs=1e-5)
        assert (results.scores[sentence, len(wanted) :] == -np.inf).all()


def test_a_beam_of_every_hypothesis_is_the_exhaustive_search():
    vocabulary, length = 3, 3
    script = random_script(vocabulary, length, steps=2, seed=5)
    results = found(BeamSearch(vocabulary**length, n_best=7), script, max_length=length)
    for sentence in range(2):
        everything = []
        for count in range(length):
            for prefix in itertools.product([1, 2], repeat=count):
                tokens = (*prefix, END)
                logs = [script.log_probs(sentence, tokens[:i])[t] for i, t in enumerate(tokens)]
                everything.append((sum(logs), tokens))
        everything.sort(reverse=True)
        assert len(everything) == 7
        for place, (score, tokens) in enumerate(everything):
            assert tuple(results.tokens[sentence, place][: len(tokens)]) == tokens
            assert results.scores[sentence, place] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(2))
def test_a_beam_of_width_one_is_greedy_search(alpha, seed):
    script = random_script(vocabulary=4, depth=5, steps=3, seed=seed)
    greedy = found(GreedySearch(), script, max_length=5)
    beams = found(BeamSearch(1, length_penalty=alpha), script, max_length=5)
    np.testing.assert_array_equal(beams.tokens, greedy.tokens)
    np.testing.assert_array_equal(beams.weights, greedy.weights)
    scores = greedy.scores / greedy.lengths**alpha
    np.testing.assert_allclose(beams.scores, scores, rtol=1e-6)


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(3, n_best=2, length_penalty=1)])
def test_a_batch_of_six_is_six_singles(search):
    script = random_script(vocabulary=4, depth=5, steps=3, sentences=6)
    together = found(search, script, max_length=5)
    for row in range(6):
        alone = found(search, script, max_length=5, rows=[row])
        for both, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(both[row], one[0])


def test_more_beams_than_outputs_leaves_the_rest_empty():
    results = found(BeamSearch(9, n_best=9), random_script(3, 2, 2), max_length=2)
    outputs = np.isfinite(results.scores).sum(axis=1)
    np.testing.assert_array_equal(outputs, 3)  # end; 1 end; 2 end
    assert (results.tokens[:, 3:] == -1).all()
    assert (results.lengths[:, 3:] == 0).all()
    assert (results.weights[:, 3:] == 0).all()


def test_the_hypotheses_of_the_first_step_are_distinct():
    tokens = found(BeamSearch(3, n_best=3), random_script(4, 2, 2), max_length=2).tokens
    for row in tokens:
        assert len({tuple(one) for one in row}) == 3


def test_padding_costs_no_coverage_and_an_unattended_step_does():
    table = {
        (0, ()): ([0.5, 0.5], [1, 0, 0]),
        (0, (1,)): ([1, 0], [0, 1, 0]),
    }
    results = {}
    for name, real in {"padded": [1, 1, 0], "real": [1, 1, 1]}.items():
        script = Script(table, 1, real=[np.array(real, bool)])
        results[name] = found(BeamSearch(2, n_best=2, coverage_penalty=0.1), script, 3)
    log_half, unattended = math.log(0.5), 0.1 * math.log(1e-6)
    # "1 end" attends to both of two real steps; "end" to one of them.
    np.testing.assert_allclose(
        results["padded"].scores[0], [log_half, log_half + unattended], rtol=1e-5
    )
    np.testing.assert_allclose(
        results["real"].scores[0], [log_half + unattended, log_half + 2 * unattended], rtol=1e-5
    )


def test_greedy_search_takes_the_most_probable_and_stops_at_the_end():
    results = found(GreedySearch())
    assert spelled(results.tokens[0]) == spell("w1 eos")
    assert spelled(results.tokens[1]) == spell("w1 w2 eos")
    np.testing.assert_array_equal(results.lengths, [2, 3])
    np.testing.assert_allclose(results.scores, np.log([0.9, 0.7 * 0.4 * 0.6]), rtol=1e-6)
    np.testing.assert_array_equal(results.weights[0], [[1, 0, 0], [0, 1, 0], [0] * 3, [0] * 3])


GREEDY_RULES = [
    GreedySearch(min_length=4),
    GreedySearch(banned_tokens=[1, 3]),
    GreedySearch(no_repeat_ngram=1),
    GreedySearch(no_repeat_ngram=2, min_length=5),
    GreedySearch(no_repeat_ngram=3, min_length=5, banned_tokens=[2, 3]),
    GreedySearch(no_repeat_ngram=9),
]


@pytest.mark.parametrize("search", GREEDY_RULES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_greedy_search_keeps_the_rules(search, seed):
    script = random_script(vocabulary=4, depth=6, steps=3, seed=seed)
    results = found(search, script, max_length=6)
    for sentence in range(2):
        tokens, score = (), 0.0
        while END not in tokens:
            logs = script.log_probs(sentence, tokens)
            token = int(np.argmax(reference.allowed(logs, tokens, END, 6, search)))
            tokens, score = (*tokens, token), score + logs[token]
        assert tuple(results.tokens[sentence][: len(tokens)]) == tokens
        assert results.scores[sentence] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("search", [GreedySearch(banned_tokens=[2]), BeamSearch(2)], ids=str)
def test_a_forced_prefix_comes_first_and_counts(search):
    script = random_script(vocabulary=4, depth=5, steps=3)
    forced = np.array([[2, 1, -1, -1, -1], [3, -1, -1, -1, -1]], "int32")
    results = found(search, script, max_length=5, forced=forced)
    np.testing.assert_array_equal(results.tokens[0, :2], [2, 1])
    np.testing.assert_array_equal(results.tokens[1, :1], [3])
    for sentence, tokens in enumerate(results.tokens):
        tokens = [int(t) for t in tokens if t >= 0]
        logs = [script.log_probs(sentence, tokens[:i])[t] for i, t in enumerate(tokens)]
        assert results.scores[sentence] == pytest.approx(sum(logs), abs=1e-5)


def draw(search, probabilities, uniform):
    """What `search` draws first from `probabilities` with this random number."""
    table = {(0, ()): (probabilities, [1.0])}
    table |= {(0, (t,)): ([1.0] + [0.0] * (len(probabilities) - 1), [1.0]) for t in range(1, 5)}
    results = found(search, Script(table, 1), max_length=2, uniform=np.float32(uniform))
    return int(results.tokens[0, 0]), float(results.scores[0])


# From the most probable: 3 (.4), 1 (.3), 4 (.2), 0, the end (.1).
DRAWN = [0.1, 0.3, 0.0, 0.4, 0.2]


@pytest.mark.parametrize(
    ("search", "borders"),
    [
        (RandomSampling(), {3: 0.4, 1: 0.7, 4: 0.9, 0: 1.0}),
        (RandomSampling(temperature=0.5), {3: 16 / 30, 1: 25 / 30, 4: 29 / 30, 0: 1.0}),
        (RandomSampling(temperature=1e-39), {3: 1.0}),
        (RandomSampling(temperature=1e39), {3: 0.25, 1: 0.5, 4: 0.75, 0: 1.0}),
        (
            RandomSampling(temperature=1e39, top_k=3, banned_tokens=[3]),
            {1: 1 / 3, 4: 2 / 3, 0: 1},
        ),
        (RandomSampling(top_k=2), {3: 4 / 7, 1: 1.0}),
        (RandomSampling(top_p=0.75), {3: 4 / 9, 1: 7 / 9, 4: 1.0}),
        (RandomSampling(top_p=0.3), {3: 1.0}),
        (RandomSampling(top_k=99, top_p=1), {3: 0.4, 1: 0.7, 4: 0.9, 0: 1.0}),
        (RandomSampling(banned_tokens=[3]), {1: 0.5, 4: 5 / 6, 0: 1.0}),
    ],
    ids=str,
)
def test_sampling_draws_each_token_as_often_as_it_is_probable(search, borders):
    below = 0.0
    for token, border in borders.items():
        for uniform in (below + 1e-5, border - 1e-5):
            drawn, score = draw(search, DRAWN, uniform)
            assert drawn == token
            # Of the model itself, whatever the temperature.
            assert score == pytest.approx(math.log(DRAWN[token]), abs=1e-6)
        below = border


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_extreme_random_numbers_draw_no_impossible_token(uniform):
    token, score = draw(RandomSampling(), DRAWN, uniform)
    assert token == (3 if uniform == 0 else 0)
    assert np.isfinite(score)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BeamSearch(0), "`width` should be a positive integer.*Fix"),
        (lambda: BeamSearch(2.5), "`width`"),
        (lambda: BeamSearch(2, n_best=3), "`n_best` should be at most width=2.*Fix"),
        (lambda: BeamSearch(2, length_penalty=-1), "`length_penalty`.*from 0 up"),
        (lambda: BeamSearch(2, length_penalty=math.nan), "`length_penalty`"),
        (lambda: BeamSearch(2, coverage_penalty="1"), "`coverage_penalty`"),
        (lambda: RandomSampling(temperature=0), "`temperature`.*above 0"),
        (lambda: RandomSampling(top_p=1.5), "`top_p`.*at most 1"),
        (lambda: RandomSampling(top_k=0), "`top_k`"),
        (lambda: RandomSampling(seed="a"), "`seed`.*None for new samples"),
        (lambda: GreedySearch(min_length=-1), "`min_length`"),
        (lambda: GNMTPenalty(-1), "`alpha`.*from 0 up"),
        (lambda: GreedySearch(banned_tokens=[1.5]), "`banned_tokens`.*token id"),
        (lambda: GreedySearch(no_repeat_ngram=True), "`no_repeat_ngram`"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_searches_with_equal_settings_are_equal():
    assert BeamSearch(3, banned_tokens=[1]) == BeamSearch(3, banned_tokens=(1,))
    assert hash(GreedySearch()) == hash(GreedySearch())
    assert BeamSearch(3) != BeamSearch(4)
    assert BeamSearch(np.int64(3), length_penalty=np.float64(1)) == BeamSearch(3, None, 1.0)
    assert GreedySearch(banned_tokens=5) == GreedySearch(banned_tokens=[5])
