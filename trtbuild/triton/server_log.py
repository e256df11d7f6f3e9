"""What tritonserver's log says of a failure, without what it always says on a machine without a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

_LINE = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+ +\d+ \S+\] +(?P<text>.*)$")
_NOISE = re.compile(r"cuda|nvml|dcgm|gpu metrics|pinned memory|failed to load all models", re.IGNORECASE)
_FAILED_MODEL = re.compile(r"failed to load '(?P<model>[^']+)' version (?P<version>\d+): \w[\w ]*?: (?P<reason>.*)")


def failure(log: Path) -> str:
    """The reason that the log gives for a failure, in one text of a few lines; "" if it gives none.

    A model's own exception comes before anything else; then the server's last words (`error: creating server: …`); then
    the last error line.
    """
    records = _records(log.read_text(encoding="utf-8", errors="replace"))
    for level, text in records:
        found = _FAILED_MODEL.match(text)
        if found and level == "E":
            return f"Model {found['model']!r}, version {found['version']}: {_exception(found['reason'], text)}"
    errors = [text for level, text in records if level in "EF" and not _NOISE.search(text.splitlines()[0])]
    return errors[-1].strip() if errors else ""


def loaded_models(log: Path) -> list[str]:
    """Names of the models that the log says were loaded, in that order."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return re.findall(r"successfully loaded '([^']+)'", text)


def _records(text: str) -> list[tuple[str, str]]:
    """(level, text) of each entry. Some are JSON strings on one line, some are plain and may have several lines."""
    records: list[tuple[str, str]] = []
    for line in text.splitlines():
        start = _LINE.match(line)
        if start:
            records.append((start["level"], start["text"]))
        elif line.startswith("error: "):
            records.append(("E", line.removeprefix("error: ")))
        elif records:
            records[-1] = (records[-1][0], f"{records[-1][1]}\n{line}")
    return [(level, _unquoted(entry.strip())) for level, entry in records]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text.strip('"')


def _exception(reason: str, text: str) -> str:
    """The message of a Python model's exception, which the backend follows by its traceback as 'At:' and the frames."""
    message = text[text.index(reason) :] if reason else text
    return message.split("\n\nAt:")[0].strip()
