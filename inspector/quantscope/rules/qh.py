"""QH: input made to harm or to hide: names that leave the folder, escapes, code in pickles, limits reached."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.families.modules import MAX_PATTERN
from quantscope.model import Subject
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.container_rule import Advice, ContainerRule
from quantscope.rules.facts import Facts
from quantscope.text import inert

MAX_NAME = 500


class OutsideFolder(ContainerRule):
    """A name that leads out of the checkpoint folder."""

    code = "QH001"
    name = "path-outside-folder"
    severity = "violation"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "index-name-outside": Advice(
            "the shard was not opened; its tensors are absent",
            "keep all shards in the folder of the index",
        ),
        "symlink-outside": Advice("none", "check that the link is wanted", "storage"),
    }
    page = Page(
        checks="Shard names of an index and links of the folder for a way out of it.",
        why="A name such as ../../secret makes a loader read, or a tool upload, what is not part of the model.",
        evidence="The name itself; proved.",
        proves_not="Ill intent: a careless tool writes absolute paths too.",
        sample="index-outside",
    )


class Pickle(ContainerRule):
    """A pickle that would run code, or that cannot be read without doing so."""

    code = "QH002"
    name = "pickle-code"
    severity = "warning"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "pt-global": Advice(
            "the objects concerned were not built; loading the file runs the code named",
            "load with weights_only=True, or get a safetensors file",
        ),
        "pt-legacy-pickle": Advice(
            "the file was not read: a bare pickle cannot be walked as data",
            "get a safetensors file",
        ),
    }
    page = Page(
        checks="The globals that a pickle names against a list of harmless ones; nothing is ever unpickled.",
        why="Loading a pickle runs whatever it names.",
        evidence="The opcodes of the pickle; proved for the names.",
        proves_not="That a pickle with harmless names is harmless in every loader.",
        sample="torch-global",
    )


class LimitReached(ContainerRule):
    """Input beyond a limit of this reader; the rest was not looked at."""

    code = "QH003"
    name = "limit-reached"
    severity = "warning"
    slugs: ClassVar[Mapping[str, Advice]] = {
        "issues-left-out": Advice("none", "", "nobody"),
        "folder-over-limit": Advice(
            "files beyond the limit were not looked at", "scan the files by name", "nobody"
        ),
        "config-too-large": Advice(
            "what the file declares is unknown", "shorten the file", "config"
        ),
        "pt-pickle-size": Advice("the archive was not walked", "", "nobody"),
        "pt-pickle-limit": Advice("values beyond the limit were not kept", "", "nobody"),
    }
    page = Page(
        checks="Where a size, a depth or a count was beyond what this reader takes in.",
        why="What lies beyond a limit was not checked.",
        evidence="The limits are constants of the program.",
        proves_not="That the file is at fault: a very large model can reach a limit too.",
        sample="config-huge",
    )


class HostileName(Rule):
    """Names with control, bidi or invisible characters, or of absurd length."""

    code = "QH004"
    name = "hostile-name"
    severity = "warning"
    page = Page(
        checks="Tensor and shard names for control, bidirectional and invisible characters and for length.",
        why="Such names rewrite a terminal, break markup, or look like another name.",
        evidence="The characters; proved.",
        proves_not="Ill intent.",
        sample="hostile-name",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Stored names whose characters are not plain."""
        for stored in facts.opened.tensors:
            reason = _odd(stored.name)
            if reason is not None:
                yield self.hit(
                    Subject(stored=stored.name, file=facts.file_name(stored.file_id)),
                    f"tensor name {reason}: {inert(stored.name)[:120]}",
                    fold=reason,
                    many="{count} tensor names with characters or lengths that are not plain",
                    impact="none on the weights; the name can deceive a person or a terminal",
                    try_="rename the tensor",
                    data={"reason": reason, "length": len(stored.name)},
                )


def _odd(name: str) -> str | None:
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters"
    if name.isascii() and name.isprintable():
        return None
    for char in name:
        category = unicodedata.category(char)
        if category == "Cc":
            return f"holds the control character {ord(char):#04x}"
        if category in ("Cf", "Co", "Cs", "Cn", "Zl", "Zp"):
            return f"holds the invisible character U+{ord(char):04X}"
    return None


class UncompiledPattern(Rule):
    """A pattern of a declaration that is not safe to compile."""

    code = "QH005"
    name = "pattern-not-compiled"
    severity = "warning"
    page = Page(
        checks="Regular expressions in ignore lists, targets and per-module rules: length, nested repeats, syntax.",
        why="A pattern with nested repeats hangs every reader that compiles it; a broken one matches nothing.",
        evidence="The text of the pattern; proved.",
        proves_not="That the pattern was meant to harm.",
        sample="pattern-bomb",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Patterns that `families.modules.compiled` refuses."""
        from quantscope.families.modules import compiled
        from quantscope.rules.exclusions import pattern_texts

        for source, pattern in pattern_texts(facts):
            if compiled(pattern) is None:
                why = (
                    f"longer than {MAX_PATTERN}"
                    if len(pattern) > MAX_PATTERN
                    else "nested or broken"
                )
                yield self.hit(
                    Subject(config_key=str(source), file=source.file),
                    f"pattern is {why} and was not applied: {inert(pattern)[:80]}",
                    fold=f"{source}|{pattern[:64]}",
                    impact="which modules it covers is unknown",
                    try_="list the module names instead",
                    who="config",
                    data={"pattern": pattern[:200], "length": len(pattern)},
                )


RULES = (OutsideFolder, Pickle, LimitReached, HostileName, UncompiledPattern)
