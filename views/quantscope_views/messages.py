"""Messages of the app: what workers report (past tense) and what widgets ask for (`...Requested`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quantscope.errors import QuantscopeError
from quantscope.session.events import Progress
from textual.message import Message

from quantscope_views.place import Place

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.session.inspection import Inspection

    from quantscope_views.present.bytes_model import BytesPage
    from quantscope_views.present.headline import Overview
    from quantscope_views.present.scan_tally import ScanTally
    from quantscope_views.present.tensor_table import RowFacts, TensorTable


class FolderSeen(Message):
    """What lies at the path, before any header is read: in words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words


class CheckpointOpened(Message):
    """Headers and config files were read."""

    def __init__(self, checkpoint: Checkpoint, overview: Overview) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.overview = overview


class TensorsListed(Message):
    """Stored tensors were grouped into logical ones."""

    def __init__(self, table: TensorTable, overview: Overview) -> None:
        super().__init__()
        self.table = table
        self.overview = overview


class TensorsExamined(Message):
    """A batch of tensors has contracts."""

    def __init__(self, first: int, facts: list[RowFacts]) -> None:
        super().__init__()
        self.first = first
        self.facts = facts


class InspectionJudged(Message):
    """Rules have spoken on what is known so far; `stage` is headers, part, sample or deep."""

    def __init__(self, inspection: Inspection, tally: ScanTally, stage: str) -> None:
        super().__init__()
        self.inspection = inspection
        self.tally = tally
        self.stage = stage


class JobStarted(Message):
    """A job began."""

    def __init__(self, job: str, title: str) -> None:
        super().__init__()
        self.job = job
        self.title = title


class JobProgressed(Message):
    """How far a job is; a flood of these collapses into the last."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress

    def can_replace(self, message: Message) -> bool:
        """Later progress of the same job stands for earlier progress."""
        return isinstance(message, JobProgressed) and message.progress.job == self.progress.job


class JobEnded(Message):
    """A job is over: `outcome` is done, stopped or failed."""

    def __init__(
        self,
        job: str,
        outcome: str,
        note: str = "",
        error: QuantscopeError | None = None,
        details: str = "",
    ) -> None:
        super().__init__()
        self.job = job
        self.outcome = outcome
        self.note = note
        self.error = error
        self.details = details


class PageRead(Message):
    """The bytes around a cursor were read and decoded."""

    def __init__(self, channel: str, tensor: str, page: BytesPage) -> None:
        super().__init__()
        self.channel = channel
        self.tensor = tensor
        self.page = page

    def can_replace(self, message: Message) -> bool:
        """Only the newest page of a channel counts."""
        return isinstance(message, PageRead) and message.channel == self.channel


class ResultReady(Message):
    """A small piece of work for one pane is done; `key` says which."""

    def __init__(self, key: str, result: Any) -> None:
        super().__init__()
        self.key = key
        self.result = result


class FilesChanged(Message):
    """A file of the checkpoint is not what it was when it was opened."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class PlaceRequested(Message):
    """A widget asks to go somewhere."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
