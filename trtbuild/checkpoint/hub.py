"""Models, and files of data sets, of the Hugging Face Hub, through the user's own cache, token and offline mode."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from trtbuild.checkpoint.base import Checkpoint
from trtbuild.checkpoint.folder import open_folder
from trtbuild.errors import BuildError, InputError, TrtbuildError
from trtbuild.progress import Progress, Silent

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)

WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
"""Never a pickle."""
UNWANTED = ["*/*", "consolidated*.safetensors"]
"""Other formats' folders (onnx/, original/), and Mistral's second copy of the weights."""


def open_hub(model: str, *, revision: str | None = None, progress: Progress | None = None) -> Checkpoint:
    """Download `model` ('org/name' or 'org/name@revision') unless it is cached, and open its snapshot.

    The checkpoint's source is the id and the commit that the revision resolved to; the hub's library draws its own
    progress bars. Raises InputError when there is no such model or revision, access is refused, or HF_HUB_OFFLINE is
    set and the cache does not have it; BuildError when the hub cannot be reached or the download fails.
    """
    inline = model.partition("@")[2]
    if inline and revision and inline != revision:
        raise InputError(f"{model!r} names the revision {inline!r} and the option {revision!r}. Give one of them.")
    full = f"{model}@{revision}" if revision and not inline else model
    match = _HUB_ID.fullmatch(full)
    if match is None or ".." in full:
        raise InputError(f"{full!r} is not a hub id. One looks like org/name or org/name@revision.")
    repo, revision = match["repo"], match["revision"]
    (progress or Silent()).stage(f"Fetching {repo}")
    snapshot = _download(repo, revision, "model", WANTED, UNWANTED)
    try:
        return open_folder(snapshot, name=repo.partition("/")[2], source=f"{repo}@{snapshot.name}")
    except InputError as error:
        if _offline():
            hint = "Unset HF_HUB_OFFLINE to fetch what is missing."
            raise InputError(f"{error} (The hub's cache may hold only a part of {repo}. {hint})") from error
        raise


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def fetch_file(repo: str, path: str, revision: str | None = None) -> Path:
    """Download one file of a data set unless it is cached. Raises InputError and BuildError as `open_hub` does."""
    file = _download(repo, revision, "dataset", [glob.escape(path)], None) / path
    if file.is_file():
        return file
    raise InputError(f"The data set {repo} has no file {path}. Look at its page for what it has.")


def _download(repo: str, revision: str | None, kind: str, wanted: list[str], unwanted: list[str] | None) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    at = f" at revision {revision}" if revision else ""
    other = ", and there is no folder of that name here" if kind == "model" else ""
    page = repo if kind == "model" else f"datasets/{repo}"
    try:
        return Path(
            snapshot_download(
                repo,
                repo_type=kind,
                revision=revision,
                allow_patterns=wanted,
                ignore_patterns=unwanted,
                local_files_only=_offline(),
            )
        )
    except errors.HFValidationError as error:
        raise InputError(f"{repo!r} is not a hub id: {error}") from error
    except errors.GatedRepoError as error:
        raise InputError(
            f"{repo} is gated: its owner asks for an agreement first. Accept it at {constants.ENDPOINT}/{page}, "
            "then log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{repo} has no revision {revision or 'main'!r}. Look at {constants.ENDPOINT}/{page}/tree/main for its "
            "branches and tags."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{constants.ENDPOINT} has no {kind} {repo}{other}. Check the spelling; "
            "if it is private, log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except Exception as error:  # the HTTP library's own among them, which is another in each line of the hub's versions
        raise _failure(repo, at, error) from error


def _failure(repo: str, at: str, error: Exception) -> TrtbuildError:
    from huggingface_hub import constants, errors

    cached = f"in the cache ({constants.HF_HUB_CACHE})"
    not_cached = isinstance(error, errors.LocalEntryNotFoundError)
    if not_cached and _offline():
        return InputError(
            f"{repo}{at} is not whole {cached} and HF_HUB_OFFLINE is set. "
            "Unset it to download it, or give a local copy."
        )
    cause = error.__cause__ if not_cached and error.__cause__ else error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in (401, 403):
        return InputError(
            f"{constants.ENDPOINT} refuses access to {repo}: {_first_line(cause)} "
            "Log in again with `hf auth login`, or correct HF_TOKEN."
        )
    if not_cached and status is None:
        return BuildError(
            f"{constants.ENDPOINT} cannot be reached and {repo}{at} is not {cached}: {_first_line(cause)} "
            "Check the network and HF_ENDPOINT, or give a local copy."
        )
    return BuildError(f"{repo}{at} could not be downloaded: {_first_line(cause)} Try again.")


def _first_line(error: BaseException) -> str:
    line = (str(error) or type(error).__name__).splitlines()[0]
    return line if line.endswith(".") else f"{line}."
