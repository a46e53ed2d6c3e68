"""What known runtimes do with a zero plane, and whose fault follows from it."""

from __future__ import annotations

import pytest
from quantscope.infer.readers import (
    ReadingContext,
    file_or_loader,
    readers_right,
    readers_wrong,
    stances,
)


def context(**changes: object) -> ReadingContext:
    values: dict[str, object] = {
        "family": "gptq",
        "bit_width": 4,
        "symmetric": False,
        "has_group_index": True,
        "checkpoint_format": None,
        "format": None,
    }
    return ReadingContext(**{**values, **changes})  # type: ignore[arg-type]


def by_reader(found: list) -> dict[str, tuple[str, object]]:
    return {stance.reader: (stance.action, stance.value) for stance in found}


def test_undeclared_format_is_minus_one_to_every_runtime_that_looks_for_one() -> None:
    found = by_reader(stances("zero_convention", context()))
    assert found["gptqmodel"] == ("uses", "minus_one")
    assert found["exllamav2"] == ("uses", "minus_one")
    assert found["llama.cpp convert"] == ("uses", "minus_one")
    assert found["auto-gptq"] == ("uses", "minus_one")


def test_v2_is_seen_by_those_that_read_checkpoint_format_and_by_nobody_else() -> None:
    found = by_reader(stances("zero_convention", context(checkpoint_format="gptq_v2")))
    assert found["gptqmodel"] == ("uses", "as_is")
    assert found["exllamav2"] == ("uses", "as_is")
    assert found["auto-gptq"] == ("uses", "minus_one")
    written_elsewhere = by_reader(stances("zero_convention", context(format="gptq_v2")))
    assert written_elsewhere["gptqmodel"] == ("uses", "as_is")
    assert written_elsewhere["exllamav2"] == ("uses", "minus_one")


@pytest.mark.parametrize(
    ("symmetric", "action"), [(True, "ignores"), (False, "refuses"), (None, "refuses")]
)
def test_vllm_takes_symmetric_files_and_never_looks_at_their_zeros(
    symmetric: bool | None, action: str
) -> None:
    found = by_reader(stances("zero_convention", context(symmetric=symmetric)))
    assert found["vLLM"][0] == action


def test_runtimes_refuse_what_they_cannot_read() -> None:
    three_bits = by_reader(stances("zero_convention", context(bit_width=3)))
    assert three_bits["llama.cpp convert"][0] == "refuses"
    assert three_bits["exllamav2"][0] == "refuses"
    no_index = by_reader(stances("zero_convention", context(has_group_index=False)))
    assert no_index["llama.cpp convert"][0] == "refuses"
    assert no_index["mlx-lm"] == ("uses", "as_is")


def test_the_fault_is_the_files_where_its_declaration_contradicts_its_bytes() -> None:
    found = stances("zero_convention", context(checkpoint_format="gptq"))
    assert file_or_loader(("minus_one",), "as_is", found).startswith("the file:")
    assert file_or_loader(("minus_one",), "minus_one", found).startswith(("neither", "the loader"))


def test_the_fault_is_the_loaders_where_the_file_says_what_it_means() -> None:
    found = stances("zero_convention", context(checkpoint_format="gptq_v2", has_group_index=False))
    words = file_or_loader(("as_is",), "as_is", found)
    assert words.startswith("the loader:")
    assert "auto-gptq" in words


def test_nothing_declared_and_readers_that_guess_wrong_is_both() -> None:
    found = stances("zero_convention", context())
    assert file_or_loader((), "as_is", found).startswith("both:")
    assert file_or_loader((), None, found).startswith("undecided:")


def test_right_and_wrong_readers_are_those_that_decode_so() -> None:
    found = stances("zero_convention", context(checkpoint_format="gptq_v2"))
    assert {s.reader for s in readers_wrong(found, "as_is")} == {"auto-gptq"}
    assert "gptqmodel" in {s.reader for s in readers_right(found, "as_is")}
