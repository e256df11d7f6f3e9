"""A checkpoint folder: config.json, a tokenizer, and one safetensors file or several with an index."""

from __future__ import annotations

from pathlib import Path

from trtbuild.checkpoint.base import Checkpoint, TensorRef
from trtbuild.checkpoint.jsonfile import read_json_object
from trtbuild.checkpoint.safetensors import read_header
from trtbuild.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt"})
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


def open_folder(folder: Path, *, name: str | None = None, source: str | None = None) -> Checkpoint:
    """The checkpoint in `folder`; reads JSON and safetensors headers, no weights, and runs no code it names (auto_map).

    Raises InputError if config.json or the weights are missing, are only there as pickles, or contradict themselves.
    """
    folder = folder.absolute()
    tensors = _tensors(folder)
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(
            f"{folder} has no config.json, which says what the weights mean. "
            "Take the one that was published with them; a checkpoint without one cannot be compiled."
        )
    generation = folder / "generation_config.json"
    return Checkpoint(
        name=name or folder.resolve().name,
        source=source or str(folder),
        config=read_json_object(config),
        generation_config=read_json_object(generation) if generation.is_file() else {},
        tensors=tensors,
        tokenizer_files=tuple(path for path in (folder / name for name in TOKENIZER_FILES) if path.is_file()),
    )


def refuse_pickle(what: str) -> InputError:
    """The error for weights that exist only as pickles; `what` names the folder or file."""
    return InputError(
        f"{what}: a PyTorch pickle can run any code while it is loaded, so trtbuild never opens one. "
        "Convert it where you trust it: AutoModelForCausalLM.from_pretrained(FOLDER)"
        ".save_pretrained(NEW_FOLDER, safe_serialization=True)."
    )


def _tensors(folder: Path) -> dict[str, TensorRef]:
    single, index = folder / SINGLE, folder / INDEX
    if not index.is_file():
        if not single.is_file():
            raise _no_weights(folder)
        return read_header(single)
    weight_map = _weight_map(index)
    if single.is_file() and SINGLE not in weight_map.values():
        raise InputError(
            f"{folder} has both {SINGLE} and an index of other files, so it is not clear which are the weights. "
            f"Remove {SINGLE}, or {INDEX} with the files that it names."
        )
    return _sharded(folder, index, weight_map)


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no 'weight_map' from tensors to files. Download it again.")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name or name in (".", "..") or set(name) & set("/\\\0"):
            raise InputError(
                f"{index} puts {tensor!r} into {name!r}, which is not the name of a file beside it. "
                "An index may not point outside its folder: download it again, from a source that you trust."
            )
    return weight_map


def _sharded(folder: Path, index: Path, weight_map: dict[str, str]) -> dict[str, TensorRef]:
    tensors: dict[str, TensorRef] = {}
    for name in sorted(set(weight_map.values())):
        shard = folder / name
        if not shard.is_file():
            raise InputError(f"{index} names {name}, which is not in {folder}. Download that file.")
        for tensor, ref in read_header(shard).items():
            if tensor in tensors:
                raise InputError(
                    f"Tensor {tensor!r} is in {tensors[tensor].file.name} and again in {name} ({folder}). "
                    "The files do not belong together: download them again, all from one revision."
                )
            if tensor not in weight_map:
                raise InputError(
                    f"Tensor {tensor!r} of {shard} is not in {index.name}. "
                    "The index and the files do not belong together: download them again, all from one revision."
                )
            tensors[tensor] = ref
    for tensor, name in weight_map.items():
        if tensor not in tensors or tensors[tensor].file.name != name:
            elsewhere = f" (it is in {tensors[tensor].file.name})" if tensor in tensors else ""
            raise InputError(
                f"{index} puts {tensor!r} into {name}, and it is not there{elsewhere}. "
                "The index and the files do not belong together: download them again, all from one revision."
            )
    return tensors


def _no_weights(folder: Path) -> InputError:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        return InputError(f"{folder} cannot be read: {error.strerror}.")
    safetensors = [name for name in names if name.endswith(".safetensors")]
    ggufs = [name for name in names if name.endswith(".gguf")]
    pickles = [name for name in names if Path(name).suffix in PICKLES]
    if "adapter_config.json" in names:
        return InputError(f"{folder} holds an adapter (LoRA), not a model. Merge it into its base model first.")
    if safetensors:
        return InputError(
            f"{folder} has {safetensors[0]} but neither {SINGLE} nor {INDEX}. "
            f"Add the index that was published with it, or name the file {SINGLE} if it is the whole model."
        )
    if ggufs:
        return InputError(f"{folder} has no {SINGLE} but a GGUF; name the file itself: {folder / ggufs[0]}")
    if pickles:
        return refuse_pickle(f"{folder} has weights only as {pickles[0]}")
    return InputError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}. Is it the right folder?")
