"""Train a model: python train.py task=cifar10 [budget=30m] [backbone=vit_small] [any.option=value]"""

from vitocr.train import main

if __name__ == "__main__":
    main()
