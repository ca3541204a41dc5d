"""Class names to ids and back."""

import unicodedata

import pytest

from vitocr.codec import Classes, codec_from_dict
from vitocr.errors import UserError

ANIMALS = Classes(("cat", "dog", "고양이"))


def test_every_name_comes_back_from_its_id() -> None:
    assert [ANIMALS.decode(ANIMALS.encode(name)) for name in ANIMALS.names] == list(ANIMALS.names)


def test_a_decomposed_name_is_the_same_class_as_a_composed_one() -> None:
    as_macs_write_it = unicodedata.normalize("NFD", "고양이")
    assert as_macs_write_it != "고양이"
    assert ANIMALS.encode(as_macs_write_it) == 2
    assert Classes((as_macs_write_it,)).names == ("고양이",)


def test_two_names_that_are_one_after_normalisation_are_refused() -> None:
    with pytest.raises(UserError, match=r"must differ.*'고양이'"):
        Classes(("고양이", unicodedata.normalize("NFD", "고양이")))


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"'dgo' is none of the 3 classes\. Did you mean 'dog'\?"):
        ANIMALS.encode("dgo")


@pytest.mark.parametrize("index", [-1, 3])
def test_an_id_outside_the_classes_is_refused(index: int) -> None:
    with pytest.raises(UserError, match=rf"Class id {index} is outside 0\.\.2"):
        ANIMALS.decode(index)


def test_no_classes_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="list of class names is empty"):
        Classes(())


def test_a_codec_survives_its_description() -> None:
    assert codec_from_dict(ANIMALS.to_dict()) == ANIMALS


def test_a_codec_from_the_future_is_refused() -> None:
    with pytest.raises(UserError, match=r"no codec of type 'runes'.*Upgrade vitocr"):
        codec_from_dict({"type": "runes"})
