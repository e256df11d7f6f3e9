"""Reading config.json so that nothing in it that changes the arithmetic goes unread."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from trtbuild.errors import InputError

T = TypeVar("T")

INERT = frozenset(
    """
    architectures attention_dropout attention_probs_dropout_prob attn_implementation auto_map bad_words_ids
    begin_suppress_tokens bos_token_id chunk_size_feed_forward decoder_start_token_id diversity_penalty dtype
    early_stopping
    encoder_no_repeat_ngram_size eos_token_id finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initializer_range
    is_decoder is_encoder_decoder is_llama_config
    label2id length_penalty max_length min_length model_type num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp
    problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    rope_interleaved sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript
    transformers_version transformers.js_config typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16
    use_cache use_return_dict
    """.split()
)
"""Fields that describe training, generation or bookkeeping and leave the forward pass as it is; so do all whose
name begins with an underscore.

`rope_interleaved` is in SmolLM's files; transformers reads it nowhere.
"""


def is_inert(name: str) -> bool:
    return name in INERT or name.startswith("_")


class ConfigReader:
    """Typed access to one config.json, which remembers what was read.

    Every getter raises InputError, naming the field, for a missing field or one of another type.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where
        self._read: set[str] = set()

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._get(name, int, default))

    def real(self, name: str, default: float | None = None) -> float:
        return float(self._get(name, (int, float), default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        return bool(self._get(name, bool, default))

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._get(name, str, default))

    def optional(self, name: str, kind: type[T]) -> T | None:
        """The field, or None where it is absent or null."""
        self._read.add(name)
        value = self._config.get(name)
        return None if value is None else self._typed(name, value, kind)

    def has(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        self._read.add(name)
        return name in self._config

    def pass_over(self, *names: str) -> None:
        """Count these as read: whatever they say, this family's forward pass is the same."""
        self._read.update(names)

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        return self.optional(name, dict)

    def number(self, name: str) -> float | None:
        """An integer or a float, or None where it is absent or null."""
        self._read.add(name)
        value = self._config.get(name)
        return None if value is None else float(self._typed(name, value, (int, float)))

    def words(self, name: str) -> tuple[str, ...] | None:
        value = self.optional(name, list)
        return None if value is None else tuple(str(item) for item in value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        value = self.optional(name, list)
        return None if value is None else tuple(int(self._typed(name, item, int)) for item in value)

    def refuse(self, what: str, do: str) -> InputError:
        """An InputError about this config, for the caller to raise."""
        return InputError(f"{self._where}: {what}. {do}")

    def check_all_read(self, ignore: Collection[str]) -> None:
        """Raise InputError if a field is set that nobody read and that is not known to leave the arithmetic alone."""
        unread = {
            name: value
            for name, value in self._config.items()
            if name not in self._read
            and not is_inert(name)
            and name not in ignore
            and value not in (None, False, [], {}, "", 0, 0.0)
        }
        if unread:
            name, value = next(iter(sorted(unread.items())))
            near = difflib.get_close_matches(name, self._read, n=1, cutoff=0.8)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise self.refuse(
                f"the field {name!r} = {value!r} is not one that this recipe understands{hint}, "
                "and it may change the arithmetic",
                f"If it does not, say so with --ignore-config {name}; else this model is not supported yet.",
            )

    def _get(self, name: str, kind: Any, default: Any) -> Any:
        self._read.add(name)
        value = self._config.get(name)
        if value is None:
            if default is None:
                near = difflib.get_close_matches(name, self._config, n=1, cutoff=0.8)
                hint = f"did you mean {near[0]!r} to be it?" if near else "Is it the right folder?"
                raise self.refuse(f"the field {name!r} is missing", hint)
            return default
        return self._typed(name, value, kind)

    def _typed(self, name: str, value: Any, kind: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = kind.__name__ if isinstance(kind, type) else "number"
            raise self.refuse(f"the field {name!r} is {value!r}, not a {wanted}", "Correct the file.")
        return value
