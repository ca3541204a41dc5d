"""Synthetic word crops: `Renderer(RenderSpec(seed=1))(index)` gives an image, its text and its characters' boxes."""

from vitocr.data.render.renderer import Renderer
from vitocr.data.render.sheet import contact_sheet
from vitocr.data.render.spec import Crop, Effects, RenderSpec

__all__ = ["Crop", "Effects", "RenderSpec", "Renderer", "contact_sheet"]
