"""The three kinds of failure.

`ConfigError`: wrong before the first second of model time; ends the command with exit status 2.
`DocumentError`: one document cannot be used; its row carries the reason and the job goes on.
Anything else propagates and ends the command with exit status 1; `OperationError` is the expected part of it.
"""


class SituateError(Exception):
    """A failure whose message is one sentence for the user: what, where, and what to do."""


class ConfigError(SituateError):
    """The command, the configuration or something that it names is wrong."""


class OperationError(SituateError):
    """The work itself failed: a store, an engine, a damaged file."""


class PublishGateError(OperationError):
    """Nothing was published because someone, or something, has said so; ends the command with exit status 4."""


class DocumentError(SituateError):
    """One document cannot be used. `reason` is a stable short code, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["DocumentError"], tuple[str, str]]:
        return type(self), (self.reason, str(self))
