"""How images become answers, for `vitocr.predict`: what is looked at of each (views, long lines, orientations), how it
is read ahead of time, and what reads it: torch or onnxruntime."""
