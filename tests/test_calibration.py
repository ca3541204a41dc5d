"""Confidence comes to mean the share of right answers, and a threshold keeps the promised error rate."""

import numpy as np
import pytest

from vitocr.calibration import (
    Calibration,
    fit_calibration,
    fit_temperature,
    logit,
    operating_points,
    sigmoid,
    threshold_for,
    threshold_for_blanks,
)
from vitocr.errors import UserError
from vitocr.metrics import bootstrap_interval, log_softmax, nll


def answers(count: int, *, scale: float, shift: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences of a model that is sure of itself in its own way, and whether it was right."""
    rng = np.random.default_rng(seed)
    truth = rng.beta(3, 1, count)
    return sigmoid((logit(truth) - shift) / scale), rng.random(count) < truth


@pytest.mark.parametrize(("scale", "shift"), [(0.4, 0.0), (1.8, -0.7), (0.5, 1.0)])
def test_the_numbers_that_spoiled_a_confidence_are_found(scale: float, shift: float) -> None:
    confidence, right = answers(20_000, scale=scale, shift=shift)
    found = fit_calibration(confidence, right)
    assert found.scale == pytest.approx(scale, rel=0.1) and found.shift == pytest.approx(shift, abs=0.1)
    assert found.words == 20_000
    fresh, right = answers(20_000, scale=scale, shift=shift, seed=1)
    for low, high in ((0.5, 0.7), (0.7, 0.9), (0.9, 1.0)):  # of the words read at 0.9, nine in ten are right
        sure = found(fresh)
        inside = (sure >= low) & (sure < high)
        lowest, highest = bootstrap_interval(right[inside], confidence=0.999)
        assert lowest <= sure[inside].mean() <= highest


def test_answers_count_as_much_as_their_weights_say() -> None:
    few, many = answers(500, scale=0.5, shift=1.0), answers(5_000, scale=1.5, shift=-0.5, seed=1)
    both = [np.concatenate(pair) for pair in zip(few, many, strict=True)]
    as_often = [np.concatenate([np.repeat(a, 10), b]) for a, b in zip(few, many, strict=True)]
    weighed = fit_calibration(*both, weights=np.repeat([7.0, 0.7], [500, 5_000]))  # their sum is for no one to mind
    repeated, plain = fit_calibration(*as_often), fit_calibration(*both)
    assert weighed.scale == pytest.approx(repeated.scale, rel=0.01) != pytest.approx(plain.scale, rel=0.05)
    assert weighed.shift == pytest.approx(repeated.shift, abs=0.01) and weighed.words == 5_500


def test_order_is_kept_and_the_ends_stay_finite() -> None:
    calibrated = Calibration(0.3, -0.2)([0.0, 1e-9, 0.2, 0.9, 1.0])
    assert (np.diff(calibrated) >= 0).all() and calibrated[2] < calibrated[3] < calibrated[4] < 1
    assert np.allclose(Calibration()([0.25, 0.75]), [0.25, 0.75])


def test_a_model_without_a_mistake_is_not_called_infallible() -> None:
    found = fit_calibration(np.linspace(0.5, 0.999, 100), np.ones(100))
    assert (found(np.linspace(0.5, 0.999, 100)) < 0.9999).all()


def test_a_model_surer_when_wrong_is_given_its_share_of_right_answers() -> None:
    confidence = np.concatenate([np.full(100, 0.9), np.full(100, 0.2)])
    right = np.concatenate([np.zeros(100), np.ones(100)])
    assert np.allclose(fit_calibration(confidence, right)(confidence), 0.5, atol=0.01)


def test_too_few_words_are_refused() -> None:
    with pytest.raises(UserError, match="at least 50 words"):
        fit_calibration([0.5] * 10, [True] * 10)


def test_a_threshold_keeps_as_many_answers_as_the_error_rate_allows() -> None:
    confidence = np.array([0.9, 0.8, 0.8, 0.7, 0.6, 0.5])
    right = np.array([True, True, False, True, False, False])
    chosen = threshold_for(confidence, right, error=0.25)
    assert chosen is not None and chosen.threshold == 0.7 and chosen.kept == 4 / 6 and chosen.error == 0.25
    strict = threshold_for(confidence, right, error=0.0)
    assert strict is not None and strict.threshold == 0.9  # the two at 0.8 go together, and one of them is wrong
    assert threshold_for([0.9, 0.8], [False, True], error=0.1) is None


def test_operating_points_say_what_each_wanted_error_rate_costs() -> None:
    confidence = np.linspace(1, 0, 100, endpoint=False)
    right = np.arange(100) < 90  # the ten least sure are wrong
    points = operating_points(confidence, right, [0.0, 0.05])
    assert points[0] == {"wanted": 0.0, "threshold": pytest.approx(0.11), "kept": 0.9, "error": 0.0}
    assert points[1]["kept"] == 0.94 and points[1]["error"] == pytest.approx(4 / 94)
    assert operating_points([0.9], [False], [0.01]) == [{"wanted": 0.01, "threshold": None, "kept": 0.0, "error": None}]


def test_a_threshold_for_blank_pictures_lies_just_above_the_first_that_must_not_be_answered() -> None:
    invented = [0.9, 0.5, 0.5, 0.2]
    for share, passing in ((0.0, 0), (0.1, 1), (0.2, 1), (0.4, 4)):
        threshold = threshold_for_blanks(invented, images=10, share=share)
        assert sum(sure >= threshold for sure in invented) == passing
    assert threshold_for_blanks([], images=10, share=0.0) == 0.0


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_that_spoiled_the_logits_is_found(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (5000, 10))
    shares = np.exp(log_softmax(logits))
    labels = (shares.cumsum(axis=1) < rng.random((5000, 1))).sum(axis=1)
    found = fit_temperature(logits * temperature, labels)
    assert found == pytest.approx(temperature, rel=0.1)
    least = nll(logits * temperature / found, labels)
    assert all(nll(logits * temperature / (found * off), labels) > least for off in (0.97, 1.03))


def test_a_temperature_stays_finite_without_a_mistake_and_without_a_hit() -> None:
    logits = np.eye(5)[np.arange(100) % 5]
    assert 0 < fit_temperature(logits, np.arange(100) % 5) < 1 < fit_temperature(logits, (np.arange(100) + 1) % 5) < 100
    with pytest.raises(UserError, match="at least 50 images"):
        fit_temperature(logits[:10], np.arange(10) % 5)
