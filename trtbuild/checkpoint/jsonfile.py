"""A JSON object from a file, with errors that say where in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtbuild.errors import InputError


def read_json_object(file: Path) -> dict[str, Any]:
    """The object in `file`. Raises InputError, with line and column, if it cannot be read or holds anything else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}). Download it again.") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}. "
            "Correct it there, or download the file again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON that can be read: {error}. Download it again.") from error
    if not isinstance(value, dict):
        raise InputError(f"{file} holds a JSON {type(value).__name__}, not an object. Download it again.")
    return value
