"""verl platform "cpu"."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

CPU = torch.device("cpu")
MEMORY = 1 << 33


def _device_module() -> types.ModuleType:
    """What verl expects of ``torch.cuda``, on a machine without one."""
    module = types.ModuleType("verl_cpu_device")
    answers: dict[str, Any] = {
        "is_available": True,
        "current_device": CPU,
        "device_count": 1,
        "get_device_name": "cpu",
        "mem_get_info": (MEMORY, MEMORY),
        "get_device_properties": types.SimpleNamespace(name="cpu", total_memory=MEMORY),
        **dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), 0),
        **dict.fromkeys(
            ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "current_stream", "ipc_collect")
        ),
    }
    for name, answer in answers.items():
        setattr(module, name, lambda *args, _answer=answer, **kwargs: _answer)
    module.manual_seed = module.manual_seed_all = torch.manual_seed  # type: ignore[attr-defined]
    module.get_rng_state = lambda *args: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, *args: torch.set_rng_state(state)  # type: ignore[attr-defined]
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return CPU

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def cudart(self) -> None:
        return None


# verl builds "cpu:gloo,{device}:{backend}"; with device "cpu" that names a device twice, which torch rejects.
_init_process_group = torch.distributed.init_process_group


def _init(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    return _init_process_group("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


torch.distributed.init_process_group = _init
