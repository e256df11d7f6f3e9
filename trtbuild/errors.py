"""The one family of exceptions; the command line prints their text and turns them into exit codes."""


class TrtbuildError(Exception):
    """Anything trtbuild refuses or fails at. The text says what is wrong, where, and what to do next."""

    exit_code = 1


class InputError(TrtbuildError):
    """The input is wrong: a checkpoint, a config, a profile, an option. Nothing was tried."""

    exit_code = 2


class BuildError(TrtbuildError):
    """The input looked right and a stage failed: the parser, the builder, the server, the disk."""
