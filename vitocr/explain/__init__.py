"""What a model sees: `vitocr explain MODEL IMAGE... --out DIR` draws it, as PNG files and one HTML page.

measures   tensors in, tensors out: rollout, attention distance, principal components, similarity
looks      where a head that reads looked for each character it wrote
collect    runs a model on images and gathers all of it, and says what does not apply
draw       pixels: heat over a picture, sheets of panels, the plot
figures    which figures there are, with their words
page       the figures as files and as one page that needs nothing else
"""
