"""Lightning's advice, less what is untrue of our runs or said to nobody."""

import logging
import warnings


def lightning() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for pattern in (
        ".*does not have many workers.*",  # on a CPU a worker takes a core from training
        ".*`max_epochs` was not set.*",
        ".*Found .* module.* in eval mode.*",
        ".*treespec.*is deprecated.*",
        ".*sync_dist=True.*",  # validation sums over the ranks itself
    ):
        warnings.filterwarnings("ignore", pattern)
