"""Figures that can be checked by hand."""

import json
import math

import numpy as np
import pytest
import torch

from vitocr import metrics

LABELS = np.array([0, 1, 2, 2])
LOGITS = np.log(
    [
        [0.7, 0.2, 0.1],  # right
        [0.6, 0.3, 0.1],  # wrong, second best
        [0.1, 0.1, 0.8],  # right
        [0.5, 0.4, 0.1],  # wrong, last
    ]
)


def test_accuracy_counts_the_first_and_the_first_k() -> None:
    assert metrics.accuracy(LOGITS, LABELS) == 0.5
    assert metrics.accuracy(LOGITS, LABELS, top=2) == 0.75
    assert metrics.accuracy(LOGITS, LABELS, top=3) == 1.0


def test_nll_is_the_mean_surprise_of_the_true_class() -> None:
    assert metrics.nll(LOGITS, LABELS) == pytest.approx(-np.log([0.7, 0.3, 0.8, 0.1]).mean())


def test_nll_survives_huge_logits() -> None:
    assert metrics.nll([[1e4, 0.0]], [0]) == 0.0


def test_confusion_rows_are_true_classes_and_columns_predicted_ones() -> None:
    matrix = metrics.confusion_matrix([0, 0, 2, 0], LABELS, 3)
    assert matrix.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    assert metrics.per_class_accuracy(matrix).tolist() == [1.0, 0.0, 0.5]


def test_a_class_without_examples_has_no_accuracy() -> None:
    assert math.isnan(metrics.per_class_accuracy(np.array([[3, 0], [0, 0]]))[1])


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    # Ten answers at 80 % confidence of which six are right: 20 points too sure.
    probs = np.tile([0.8, 0.2], (10, 1))
    assert metrics.expected_calibration_error(probs, [0] * 6 + [1] * 4) == pytest.approx(0.2)


def test_opposite_gaps_in_different_bins_do_not_cancel() -> None:
    probs = np.array([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    labels = [0] * 8 + [1] * 2 + [0] * 7 + [1] * 3  # 0.8 right at 0.9, 0.7 right at 0.6
    assert metrics.expected_calibration_error(probs, labels) == pytest.approx(0.1)


def test_full_confidence_counts_too() -> None:
    assert metrics.expected_calibration_error([[1.0, 0.0]], [1]) == 1.0


def test_the_bootstrap_interval_agrees_with_theory_and_repeats() -> None:
    correct = np.arange(1000) < 800
    low, high = metrics.bootstrap_interval(correct)
    half = 1.96 * math.sqrt(0.8 * 0.2 / 1000)
    assert (low, high) == pytest.approx((0.8 - half, 0.8 + half), abs=0.002)
    assert (low, high) == metrics.bootstrap_interval(correct)


def test_the_summary_is_plain_json() -> None:
    summary = metrics.summarise_classification(LOGITS, LABELS, ["a", "b", "c"])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["accuracy"] == 0.5
    assert summary["images"] == 4
    assert summary["per_class"] == {"a": 1.0, "b": 0.0, "c": 0.5}
    assert summary["accuracy_95"][0] <= 0.5 <= summary["accuracy_95"][1]


def test_top_five_is_told_only_when_there_are_more_classes() -> None:
    logits = np.eye(6)
    assert metrics.summarise_classification(logits, range(6), "abcdef")["top5_accuracy"] == 1.0
    assert "top5_accuracy" not in metrics.summarise_classification(LOGITS, LABELS, "abc")


def test_classes_that_do_not_occur_are_left_out_of_the_summary() -> None:
    assert set(metrics.summarise_classification(LOGITS[:1], LABELS[:1], "abc")["per_class"]) == {"a"}


def test_bfloat16_tensors_are_measured_like_arrays() -> None:
    tensors = torch.tensor(LOGITS).bfloat16(), torch.tensor(LABELS)
    expected = metrics.summarise_classification(tensors[0].double().numpy(), LABELS, "abc")
    assert metrics.summarise_classification(*tensors, "abc") == expected
