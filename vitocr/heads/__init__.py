"""What is made of a backbone's tokens. One file a head, and one seam for all of them:

    head = Head(dim=..., prefix=..., grid=..., **arguments from conf/head/*.yaml)
    head(tokens) -> its raw output, what is exported
    head.loss(tokens, targets, **options) -> {"loss": scalar, ...}   other entries are shown, not minimised

`tokens` are (B, N, D), N = prefix + grid height x grid width.
"""
