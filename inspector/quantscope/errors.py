"""One base error and a subclass per cause that a person can act on."""

from __future__ import annotations


class QuantscopeError(Exception):
    """Something stopped the work; `hint` says what a person can do about it.

    Args:
        message: one sentence that says what is wrong, with the file or tensor named.
        hint: what to try, or an empty string where nothing helps.
        source: the file, tensor or key that the message is about.
    """

    exit_code = 4
    """Exit status of a command that ends with this error (cli_and_report: could not run)."""

    def __init__(self, message: str, *, hint: str = "", source: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.source = source


class NotACheckpointError(QuantscopeError):
    """The path holds nothing that any container reader knows."""


class UnreadableError(QuantscopeError):
    """The operating system refused a read, or the path is no regular file."""


class FileChangedError(QuantscopeError):
    """A file shrank or was replaced while it was open."""


class ContainerError(QuantscopeError):
    """A container's header cannot be read at all."""


class NoSuchTensorError(QuantscopeError):
    """No logical tensor, module or plane has the name that was asked for."""


class UndecodableError(QuantscopeError):
    """No proved rule decodes this tensor; the message says why."""


class WindowError(QuantscopeError):
    """Rows, columns or groups lie outside the tensor."""


class ReadingError(QuantscopeError):
    """The reading asked for does not exist for this tensor."""


class MissingExtraError(QuantscopeError):
    """An optional package is not installed; the hint names the extra."""


class CancelledError(QuantscopeError):
    """The job was stopped; what was finished so far is kept by its owner."""

    exit_code = 130


class UsageError(QuantscopeError):
    """A command was called with words that it cannot take."""

    exit_code = 64


class PluginError(QuantscopeError):
    """A family, rule or kernel from a plugin failed; the program goes on without it."""
