"""Packed fields to integer codes, and back from a code to the bits that hold it.

Every `unpack_*` works on whole arrays and fills `out` in place where one is given; codes of up to eight
bits come back as uint8. The packed axis is named by `axis`; the other axes are kept. Words may be of any
integer dtype (`I8` to `U64`); only their bits count.

Two habits make the numpy code fast: one shift and one mask per field position over a whole plane (look-up
tables cost a gather per code and lose), and blocks of words small enough for the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantscope.decode.expand import expand_fields, expand_stream
from quantscope.decode.places import AWQ_ORDER, PLANE_WIDTHS, FieldLayout, field_bits
from quantscope.errors import UndecodableError

__all__ = [
    "AWQ_ORDER",
    "PLANE_WIDTHS",
    "Codes",
    "FieldLayout",
    "Words",
    "field_bits",
    "require_bytes",
    "sign_extend",
    "unpack_awq",
    "unpack_bitstream",
    "unpack_msb_first",
    "unpack_nibbles",
    "unpack_padded",
    "unpack_planar",
    "unpack_row_chunks",
    "unpack_words",
    "unsigned_view",
    "word_bits",
]

Words = NDArray[Any]
"""Packed words: any integer dtype, any rank."""

Codes = NDArray[np.uint8]

_BLOCK_BYTES = 256 * 1024
"""Words handled at a time, so that the temporary of one shift stays in the cache."""


def word_bits(words: Words) -> int:
    """Return the number of bits of one word of `words`."""
    return words.dtype.itemsize * 8


def unsigned_view(words: Words) -> Words:
    """Return `words` seen as the unsigned dtype of the same width, without a copy.

    Raises:
        UndecodableError: the dtype is neither integer nor bool.
    """
    if words.dtype.kind == "u":
        return words
    if words.dtype.kind in "ib":
        return words.view(np.dtype(f"u{words.dtype.itemsize}"))
    raise UndecodableError(
        f"packed codes lie in words of an integer dtype, this plane is {words.dtype}",
        hint="read the plane as the unsigned words of the same width",
    )


def sign_extend(
    codes: Codes, bit_width: int, out: NDArray[np.int8] | None = None
) -> NDArray[np.int8]:
    """Read unsigned fields as two's complement.

    Args:
        codes: uint8, any shape, each below 2**bit_width.
        bit_width: 1 to 8.
        out: int8 of the shape of `codes`; may be `codes.view(int8)`.

    Returns:
        int8 in -2**(bit_width-1) .. 2**(bit_width-1)-1.
    """
    if out is None:
        out = np.empty(codes.shape, np.int8)
    shift = 8 - bit_width
    np.left_shift(codes, np.uint8(shift), out=out.view(np.uint8))
    np.right_shift(out, np.int8(shift), out=out)
    return out


def unpack_words(
    words: Words,
    bit_width: int,
    *,
    axis: int = -1,
    count: int | None = None,
    order: tuple[int, ...] | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack `floor(word bits / bit_width)` fields from every word, lowest bits first.

    With 32-bit words and 2, 4 or 8 bits this is GPTQ (axis 0), AWQ GEMV, MLX and compressed-tensors (axis
    -1); with 3, 5, 6 or 7 bits it is the padded layout of compressed-tensors up to 0.17.1, whose top bits
    stay unused; with bytes and 4 bits it is the pair "low nibble first".

    Args:
        words: integer words; the packed axis is `axis`.
        bit_width: 1 to 8.
        axis: the axis along which codes are packed.
        count: codes wanted along `axis`; all of them by default.
        order: place of each field inside its word's run of codes, lowest bits first; field i of a word
            becomes code `order[i]` of the run. Sequential by default.
        out: array of the shape of `words` with `count` along `axis`; uint8, or any dtype that holds the
            codes (float32 saves a pass).

    Returns:
        The codes; uint8 unless `out` says otherwise.

    Raises:
        UndecodableError: the words hold fewer codes than `count`, or are not integers.

    Source: AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py; compressed-tensors 0.17.1,
    compressors/pack_quantized; formats of other producers as the family pages name them.
    """
    _check_width(bit_width)
    fields = word_bits(words) // bit_width
    order = tuple(range(fields)) if order is None else order
    shifts = tuple((order[i], i * bit_width) for i in range(fields))
    packed, codes = _along_first_axis(words, axis, fields, count, out)
    target = np.moveaxis(codes, 0, axis)
    if axis in (-1, words.ndim - 1) and expand_fields(words, bit_width, order, target):
        return target
    for lines in _line_blocks(words, axis):
        _scatter_fields(packed[:, lines], shifts, fields, bit_width, codes[:, lines])
    return target


def unpack_awq(
    words: Words, *, count: int | None = None, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Unpack AWQ GEMM words: eight 4-bit codes along the last axis in the order 0, 2, 4, 6, 1, 3, 5, 7.

    Args:
        words: 32-bit, [..., N/8].
        count: codes wanted along the last axis.
        out: [..., count].

    Source: AutoAWQ, awq/modules/linear/gemm.py.
    """
    return unpack_words(words, 4, axis=-1, count=count, order=AWQ_ORDER, out=out)


def unpack_padded(
    words: Words,
    bit_width: int,
    *,
    axis: int = -1,
    count: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack words whose top bits stay unused (compressed-tensors up to 0.17.1); see `unpack_words`."""
    return unpack_words(words, bit_width, axis=axis, count=count, out=out)


def unpack_nibbles(
    packed: Words,
    *,
    axis: int = -1,
    high_first: bool = False,
    count: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack two 4-bit codes a byte that are neighbours along `axis`.

    Along axis 0, byte (r, k) holds rows 2r and 2r+1 (ModelOpt INT4). A flat bitsandbytes plane is axis 0
    of a 1-D array with `high_first`.

    Args:
        packed: bytes.
        axis: the axis along which the two codes lie.
        high_first: the high nibble holds the even code (bitsandbytes, ComfyUI) instead of the low one.
        count: codes wanted along `axis`.
        out: as in `unpack_words`.

    Source: ModelOpt, modelopt/torch/export/quant_utils.py; bitsandbytes, backends/default/ops.py.
    """
    require_bytes(packed)
    order = (1, 0) if high_first else (0, 1)
    return unpack_words(packed, 4, axis=axis, count=count, order=order, out=out)


def unpack_msb_first(
    words: Words,
    bit_width: int,
    *,
    axis: int = -1,
    count: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack fields whose first code lies in the highest bits of a word (Quark int2 and uint2 in bytes).

    Source: amd-quark 0.13, quark/torch/utils/pack.py.
    """
    fields = word_bits(words) // bit_width
    order = tuple(reversed(range(fields)))
    return unpack_words(words, bit_width, axis=axis, count=count, order=order, out=out)


def unpack_row_chunks(
    words: Words,
    bit_width: int,
    *,
    high_first: bool,
    rows: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack fields that split the rows into chunks: word (r, c) holds rows r, r+R, r+2R, ... of column c.

    `high_first` is HQQ and SINQ (4, 2, 1 bits in bytes; 3 bits, ten fields, in 32-bit words, the top two
    bits unused); otherwise the first chunk lies in the lowest bits, as in optimum-quanto and BitNet.

    Args:
        words: [R, C].
        bit_width: 1 to 8.
        high_first: the first chunk of rows lies in the highest field instead of the lowest.
        rows: rows kept; HQQ pads 3-bit planes to a multiple of ten rows.
        out: [rows, C].

    Returns:
        [rows, C] codes, with `rows` = fields * R by default.

    Source: HQQ, hqq/core/bitpack.py; optimum-quanto, optimum/quanto/tensor/packed.py; transformers,
    integrations/bitnet.py.
    """
    _check_width(bit_width)
    fields = word_bits(words) // bit_width
    packed, codes = _along_first_axis(words, 0, fields, rows, out)
    step = packed.shape[0]
    for chunk in range(fields):
        first_row = chunk * step
        if first_row >= codes.shape[0]:
            break
        field = fields - 1 - chunk if high_first else chunk
        part = codes[first_row : first_row + step]
        _scatter_fields(packed[: part.shape[0]], ((0, field * bit_width),), 1, bit_width, part)
    return codes


def unpack_bitstream(
    words: Words,
    bit_width: int,
    *,
    axis: int = -1,
    count: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack a dense stream: code i lies in bits i*b .. i*b+b-1 of the words put end to end, low bits first.

    Fields may straddle words. This is GPTQ 3-bit (axis 0), compressed-tensors from 0.18.0, MLX, EXL2 (one
    stream per group and column) and Quark int3 (bytes).

    Args:
        words: integer words; the packed axis is `axis`.
        bit_width: 1 to 8.
        axis: the axis along which the stream runs.
        count: codes wanted along `axis`; as many whole codes as fit by default.
        out: as in `unpack_words`.

    Raises:
        UndecodableError: the stream is shorter than `count` codes.

    Source: AutoGPTQ, qlinear_cuda_old.py (3 bits); compressed-tensors 0.18.0,
    compressors/pack_quantized/helpers.py; MLX, mlx/ops.cpp.
    """
    _check_width(bit_width)
    packed = np.moveaxis(unsigned_view(words), axis, 0)
    if axis in (-1, words.ndim - 1) and words.dtype.itemsize > 1 and _little(words):
        packed = np.moveaxis(np.ascontiguousarray(unsigned_view(words)).view(np.uint8), -1, 0)
    bits = word_bits(packed)
    if count is None:
        count = packed.shape[0] * bits // bit_width
    _check_count(count, packed.shape[0] * bits // bit_width)
    codes = _output(packed, count, axis, out)
    if axis in (-1, words.ndim - 1):
        target = np.moveaxis(codes, 0, -1)
        if expand_stream(unsigned_view(words), bit_width, target):
            return target
    for first in range(min(bits, count)):
        low_bit = first * bit_width
        _stream_field(packed, low_bit // bits, low_bit % bits, bit_width, codes[first::bits])
    return np.moveaxis(codes, 0, axis)


def unpack_planar(
    words: Words,
    bit_width: int,
    *,
    axis: int = -1,
    count: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Unpack the planar order `gptq_p`: every 32 codes take `bit_width` words, low bit plane first.

    A plane of width w holds code i of the 32 in its word i // (32/w) at bit w * (i % (32/w)). Planes are
    2+1 bits for 3, 4+1 for 5, 4+2 for 6, 4+2+1 for 7; 2, 4 and 8 bits are the sequential order.

    Args:
        words: 32-bit words, a multiple of `bit_width` of them along `axis`.
        bit_width: 1 to 8.
        axis: the packed axis.
        count: codes wanted along `axis`; all by default.
        out: uint8 of the shape of `words` with `count` along `axis`.

    Raises:
        UndecodableError: the words do not make whole runs of 32 codes, or hold fewer than `count`.

    Source: GPTQModel, gptqmodel/utils/planar_packing.py.
    """
    _check_width(bit_width)
    if word_bits(words) != 32 or words.shape[axis] % bit_width:
        raise UndecodableError(
            f"planar codes of {bit_width} bits take runs of {bit_width} 32-bit words; this plane has "
            f"{words.shape[axis]} words of {word_bits(words)} bits along the packed axis"
        )
    packed = np.moveaxis(unsigned_view(words), axis, 0)
    available = packed.shape[0] // bit_width * 32
    count = available if count is None else count
    _check_count(count, available)
    codes = _output(packed, count, axis, out)
    first_word = low_bit = 0
    for width in PLANE_WIDTHS[bit_width]:
        per_word = 32 // width
        for word in range(width):
            for field in range(per_word):
                target = codes[word * per_word + field :: 32]
                source = packed[first_word + word :: bit_width][: target.shape[0]]
                piece = (source >> np.uint32(width * field)) & np.uint32((1 << width) - 1)
                _merge(piece, low_bit, target)
        first_word += width
        low_bit += width
    return np.moveaxis(codes, 0, axis)


def _check_width(bit_width: int) -> None:
    if not 1 <= bit_width <= 8:
        raise ValueError(f"codes have 1 to 8 bits, not {bit_width}")


def _check_count(wanted: int, available: int) -> None:
    if wanted > available:
        raise UndecodableError(
            f"the plane holds {available} codes along its packed axis, {wanted} are wanted"
        )


def require_bytes(packed: Words) -> None:
    """Raise UndecodableError where codes that lie in bytes come in wider words."""
    if packed.dtype.itemsize != 1:
        raise UndecodableError(f"these codes lie in bytes, this plane is {packed.dtype}")


def _little(words: Words) -> bool:
    return words.dtype.newbyteorder("<") == words.dtype


def _output(packed: Words, count: int, axis: int, out: NDArray[Any] | None) -> NDArray[Any]:
    """Return the output with the packed axis first; a new array keeps the caller's axis order in memory."""
    if out is None:
        tail = packed.shape[1:]
        place = axis % packed.ndim
        out = np.empty((*tail[:place], count, *tail[place:]), np.uint8)
    codes = np.moveaxis(out, axis, 0)
    if codes.shape != (count, *packed.shape[1:]):
        raise ValueError(f"`out` has shape {out.shape}, which does not hold {count} codes per line")
    return codes


def _along_first_axis(
    words: Words, axis: int, fields: int, count: int | None, out: NDArray[Any] | None
) -> tuple[Words, NDArray[Any]]:
    packed = np.moveaxis(unsigned_view(words), axis, 0)
    available = packed.shape[0] * fields
    count = available if count is None else count
    _check_count(count, available)
    return packed, _output(packed, count, axis, out)


def _line_blocks(words: Words, axis: int) -> list[Any]:
    """Cut the slowest axis into blocks of the cache's size where it is not the packed one."""
    if words.ndim == 1 or axis % words.ndim == 0:
        return [Ellipsis]
    block = max(1, _BLOCK_BYTES // max(1, words[:1].nbytes))
    return [slice(start, start + block) for start in range(0, words.shape[0], block)]


def _scatter_fields(
    packed: Words,
    shifts: tuple[tuple[int, int], ...],
    step: int,
    bit_width: int,
    codes: NDArray[Any],
) -> None:
    """Write field (place, shift) of every word to `codes[place::step]`, block of words by block of words."""
    line_bytes = max(1, packed[:1].nbytes)
    block = max(1, _BLOCK_BYTES // line_bytes)
    kind = packed.dtype.type
    mask = kind((1 << bit_width) - 1)
    whole = packed.dtype.itemsize * 8 == bit_width
    for start in range(0, packed.shape[0], block):
        words = packed[start : start + block]
        scratch = np.empty_like(words)
        for place, shift in shifts:
            target = codes[start * step + place : (start + block) * step : step]
            if target.shape[0] == 0:
                continue
            source, part = words[: target.shape[0]], scratch[: target.shape[0]]
            if whole:
                part = source
            elif shift:
                np.right_shift(source, kind(shift), out=part)
                if shift + bit_width < packed.dtype.itemsize * 8:
                    np.bitwise_and(part, mask, out=part)
            else:
                np.bitwise_and(source, mask, out=part)
            np.copyto(target, part, casting="unsafe")


def _stream_field(
    packed: Words, word: int, low_bit: int, bit_width: int, target: NDArray[Any]
) -> None:
    """Write the field that starts at `low_bit` of word `word` of each run of `bit_width` words."""
    kind = packed.dtype.type
    bits = packed.dtype.itemsize * 8
    rows = target.shape[0]
    piece = packed[word::bit_width][:rows] >> kind(low_bit)
    if low_bit + bit_width > bits:
        piece |= packed[word + 1 :: bit_width][:rows] << kind(bits - low_bit)
    if low_bit + bit_width != bits:
        piece &= kind((1 << bit_width) - 1)
    np.copyto(target, piece, casting="unsafe")


def _merge(piece: Words, low_bit: int, target: NDArray[Any]) -> None:
    """Or `piece` into `target` at `low_bit`; the lowest plane overwrites what was there."""
    if low_bit == 0:
        np.copyto(target, piece, casting="unsafe")
    else:
        np.bitwise_or(target, (piece << np.uint32(low_bit)).astype(target.dtype), out=target)
