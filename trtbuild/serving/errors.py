"""What serving raises. This package cannot import trtbuild's errors: it runs alone inside Triton."""

from __future__ import annotations


class RequestError(ValueError):
    """The request is wrong or cannot be taken now; the text goes to the client as it is."""


class Unavailable(RequestError):
    """The request is right and the model has no room or no time for it; the client may try again later."""


class BackendError(RuntimeError):
    """A way to run the model does not work on this machine; the text says why and what to do."""


class OutOfPages(RuntimeError):
    """Fewer pages of the KV cache are free than a step needs."""
