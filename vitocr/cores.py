"""How many cores there are for us, and what they can do. No torch here: onnxruntime alone may be all there is."""

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


def multiplies_int8(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU sums products of 8-bit numbers in 32 bits at once (VNNI). False where nobody can tell."""
    if not cpuinfo.is_file():
        return False
    with cpuinfo.open() as lines:
        flags = next((line for line in lines if line.startswith("flags")), "").split()
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(flags)
