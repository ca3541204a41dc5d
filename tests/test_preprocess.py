"""The one road an image takes to the backbone at evaluation and in use."""

import numpy as np
import pytest
from PIL import Image

from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def test_an_image_of_the_right_size_is_only_normalised():
    image = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    out = Preprocess(size=(8, 6), mean=mean, std=std)(image)
    assert out.dtype == np.float32 and out.shape == (3, 8, 6) and out.flags.c_contiguous
    np.testing.assert_allclose(out, ((image / 255 - mean) / std).transpose(2, 0, 1), atol=1e-5)


def test_arrays_and_pil_images_give_the_same():
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    preprocess = Preprocess(size=(8, 8), **PLAIN)
    np.testing.assert_array_equal(preprocess(image), preprocess(Image.fromarray(image)))


def bars(height: int, width: int) -> np.ndarray:
    """Black, with a white left quarter and a white right quarter."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, : width // 4] = image[:, -width // 4 :] = 255
    return image


def test_crop_cuts_off_what_sticks_out_at_both_sides():
    out = Preprocess(size=(16, 16), **PLAIN, resize="crop").fit(bars(32, 64))
    assert out.shape == (16, 16, 3) and out[:, 1:-1].max() == 0 and out.max() < 50


def test_stretch_keeps_everything_and_bends_the_shape():
    out = Preprocess(size=(16, 16), **PLAIN, resize="stretch").fit(bars(32, 64))
    assert out[:, :3].min() == 255 and out[:, 6:10].max() == 0 and out[:, -3:].min() == 255


def test_pad_keeps_everything_and_fills_up_with_the_mean_colour():
    mean = (0.2, 0.4, 0.6)
    out = Preprocess(size=(16, 16), mean=mean, std=(1.0, 1.0, 1.0), resize="pad").fit(bars(32, 64))
    assert (out[:4] == (51, 102, 153)).all() and (out[-4:] == (51, 102, 153)).all()
    assert out[4:12, :3].min() == 255 and out[4:12, 6:10].max() == 0


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (7, 5)])
def test_any_shape_of_image_comes_out_at_the_size_asked_for(resize, shape):
    image = np.zeros((*shape, 3), np.uint8)
    assert Preprocess(size=(32, 128), **PLAIN, resize=resize)(image).shape == (3, 32, 128)


def test_the_description_in_a_checkpoint_brings_back_the_same_preprocessing():
    preprocess = Preprocess((32, 48), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), resize="pad", interpolation="bicubic")
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess


def test_a_misspelt_policy_is_answered_with_the_near_match():
    with pytest.raises(UserError, match=r"resize='strech' is not one of .* Did you mean 'stretch'\?"):
        Preprocess(size=(8, 8), **PLAIN, resize="strech")
