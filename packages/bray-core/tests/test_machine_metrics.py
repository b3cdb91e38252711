"""What a machine does, read from files as the kernel writes them and from a driver's library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bray_core.metrics import Registry
from bray_core.metrics.gpus import Gpus
from bray_core.metrics.machine_metrics import MachineMetrics

CC = shutil.which("cc")
DRIVER = """
typedef struct { unsigned int gpu, memory; } rates;
typedef struct { unsigned long long total, free, used; } space;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
  *handle = (void *)(0x7f0000000000ULL + index);  /* a pointer needs all of its bits */
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, rates *found) {
  unsigned long long index = (unsigned long long)handle - 0x7f0000000000ULL;
  found->gpu = 25 * (index + 1);
  found->memory = 1;
  return index > 1 ? 3 : 0;  /* the third one does not tell */
}
int nvmlDeviceGetMemoryInfo(void *handle, space *found) {
  found->total = 141ULL << 30; found->free = 101ULL << 30; found->used = 40ULL << 30;
  return 0;
}
"""


def write(proc: Path, *, busy: int, idle: int, received: int, sent: int) -> None:
    (proc / "net").mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\nintr 5 0\n")
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    (proc / "net" / "dev").write_text(
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "    lo: 900000 1 0 0 0 0 0 0 900000 1 0 0 0 0 0 0\n"
        f"  eth0:{received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
    )


def recorded(registry: Registry) -> dict[str, float]:
    return {name.partition("{")[0]: value for name, value in registry.snapshot().items()}


def test_shares_and_rates_are_of_the_time_since_the_last_call(tmp_path: Path) -> None:
    registry = Registry()
    write(tmp_path, busy=1000, idle=1000, received=500, sent=50)
    machine = MachineMetrics(registry, proc=tmp_path, gpus=Gpus(None))
    write(tmp_path, busy=1030, idle=1010, received=2500, sent=1050)
    machine.record()
    found = recorded(registry)
    assert found["machine/cpu_share"] == 0.75
    assert found["machine/memory_bytes"] == 600 * 1024
    received, sent = (found[f"machine/network_{w}_bytes_per_s"] for w in ("received", "sent"))
    assert received == pytest.approx(2 * sent)  # without the loopback
    assert received > 0
    write(tmp_path, busy=1, idle=1, received=0, sent=0)  # counts that fell tell nothing
    machine.record()
    assert recorded(registry) == found


def test_what_the_system_does_not_tell_is_not_recorded(tmp_path: Path) -> None:
    registry = Registry()
    MachineMetrics(registry, proc=tmp_path / "none", gpus=Gpus.open("libnone.so")).record()
    assert set(recorded(registry)) <= {
        "machine/network_received_bytes_per_s",
        "machine/network_sent_bytes_per_s",
    }


def test_this_machine_tells_of_its_processors_and_memory() -> None:
    registry = Registry()
    machine = MachineMetrics(registry)
    sum(range(2_000_000))  # some ticks
    machine.record()
    found = recorded(registry)
    assert found["machine/memory_bytes"] > 10e6
    assert all(0 <= value <= 1 for name, value in found.items() if name == "machine/cpu_share")


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_gpus_are_asked_of_their_drivers_library(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "driver.so"
    subprocess.run(
        [str(CC), "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True, timeout=60
    )
    registry = Registry()
    MachineMetrics(registry, proc=tmp_path, gpus=Gpus.open(str(library))).record()
    found = {
        name.partition(",host")[0]: value
        for name, value in registry.snapshot().items()
        if "gpu" in name
    }
    assert found == {
        "machine/gpu_share{gpu=0": 0.25,
        "machine/gpu_share{gpu=1": 0.5,
        "machine/gpu_memory_bytes{gpu=0": float(40 << 30),
        "machine/gpu_memory_bytes{gpu=1": float(40 << 30),
    }
