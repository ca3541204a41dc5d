"""How many cores there are for us. Without torch: it is asked where nothing but onnxruntime is installed, too."""

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: its affinity, and below that a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota_file = Path("/sys/fs/cgroup/cpu.max")
    if quota_file.is_file():
        quota, _, period = quota_file.read_text().partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores
