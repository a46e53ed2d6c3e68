"""GRIT against the package that defines it, and against fixed vectors."""

from __future__ import annotations

import random

import pytest
from quantscope.grit import descriptor as own
from quantscope.grit import grade as grades
from quantscope.grit import identity, words

grit = pytest.importorskip("grit")
placement_known = pytest.importorskip("grit.placement").placement_known
if getattr(grit, "__version__", "") != "1.1.0" or not hasattr(grit, "GritDesc"):
    pytest.skip("another package is called grit", allow_module_level=True)

FRAMES = 20_000

VECTORS = {
    "GRADE_MXFP4": "475254314001010043200748000000000000200000000000000000000000000001000000000000100100000000000010000000000000000083a154e49eee7023",
    "GRADE_Q4KS": "4752543140010221e343e5436f35e5430000200008000000000000000000000001000000000000100100000000000010010000000000001055fb9425e00d601c",
    "GRADE_NVF4": "4752543140010200432087281f370000000010000000000000000000000000000100000000000010010000000000001000000000000000001e8370284c6fff00",
    "GRADE_I8S24": "4752543140010104e7036f350000000000002000000002040101000000000000010000000000001001000000000000101100000000000010e8eb39253a28bbbb",
}


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_the_published_descriptors_are_parsed_to_their_grades(name: str) -> None:
    desc = own.Descriptor.unpack(bytes.fromhex(VECTORS[name]))
    assert desc.pack().hex() == VECTORS[name]
    assert own.frame_fault(desc) is None
    assert own.recovered_grade(desc) == grades.REGISTRY[name]


def test_gids_of_the_published_table() -> None:
    table = {
        ("GRADE_MXFP4", (32,), 0): "22T52T4K0FJVN7WCVDGAHARX0D",
        ("GRADE_Q4KS", (256,), 0): "668VC4HTK7QT91YT36V370E7ME",
        ("GRADE_I8S24", (32,), 0): "2X7NNMYRJ9K6508JQTR1J37VR9",
        ("GRADE_NVF4", (64, 256), 1): "18C9252JQ6TTY7B20N7Y5WMQBP",
    }
    for (name, shape, axis), printed in table.items():
        raw = grit.desc_for_grade(name, group_axis=axis).pack()
        desc = own.Descriptor.unpack(raw)
        value = identity.gid(desc.frame, grades.REGISTRY[name], shape)
        assert identity.crockford32(value) == printed
        assert identity.crockford32_decode(printed.lower()) == value


def test_fnv_and_digest_check_values() -> None:
    assert identity.fnv64(b"a") == 0xAF63DC4C8601EC8C
    assert identity.fnv128(b"a").hex() == "d228cb696f1a8caf78912b704e4a8964"
    assert identity.digest([b"", b"", b"", b""]).hex() == "28ee198ca550ba36979ea053be3dc70d"
    assert (
        identity.digest([b"\x01", b"", b"\x02\x03", b""]).hex()
        == "2583771de6f3f0a1aaef18585382d5e2"
    )


def _frames() -> list[bytes]:
    """Random bytes, and good descriptors with a few bytes changed: both reach every test."""
    rng = random.Random(20260801)
    good = [bytes.fromhex(text) for text in VECTORS.values()]
    frames = []
    for number in range(FRAMES):
        if number % 8 == 0:
            frames.append(rng.randbytes(64))
            continue
        raw = bytearray(rng.choice(good))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            raw[rng.randrange(64)] ^= 1 << rng.randrange(8)
        frames.append(bytes(raw))
    return frames


def test_status_equals_the_package_on_twenty_thousand_frames() -> None:
    rng = random.Random(7)
    seen: set[int] = set()
    for raw in _frames():
        shape = rng.choice(((32,), (64, 256), (256, 64), (4, 512), (16, 16), ()))
        theirs = grit.GritDesc.unpack(raw)
        desc = own.Descriptor.unpack(raw)
        try:
            lengths = grit.expected_plane_bytes(theirs, shape)["bytes"]
        except Exception:
            lengths = [0, 0, 0, 0]
        if rng.random() < 0.3:
            lengths = [n + rng.choice((0, 1)) for n in lengths]
        wanted = grit.grit_check_status(theirs, shape, lengths).status
        assert own.status(desc, shape, lengths) == int(wanted), raw.hex()
        seen.add(int(wanted))
    assert seen == {0, 1, 2, 3}


def test_plane_bytes_equal_the_package() -> None:
    rng = random.Random(11)
    for raw in _frames()[:4000]:
        shape = rng.choice(((32,), (64, 256), (256, 64), (3, 32, 64), (0, 32)))
        theirs = grit.GritDesc.unpack(raw)
        try:
            wanted: list[int] | None = grit.expected_plane_bytes(theirs, shape)["bytes"]
        except Exception:
            wanted = None
        try:
            actual: list[int] | None = list(own.plane_bytes(own.Descriptor.unpack(raw), shape))
        except own.SizeError:
            actual = None
        assert actual == wanted, raw.hex()


SPELLINGS = (
    "GRIT1( k0 = 32, E = FP4 , s0=UE8M0, esr=ocpmx )",
    "grit1(e=nibble,k0=128,s0=half,zp=u4,zpc=gptq,esr=amax_over_emax)",
    "grit1(e=s8,k0=032,s0=f16,sp=2:4:u2:sorted,esr=ratio)",
    "grit1(e=u4,k0=32,s0=u6,k1=8,s1=half,zp=u6,zps=l1,esr=minmax)",
    "grit1(e=e2m1,k0=16,s0=e4m3,esr=custom:mine,ao=pairwise_8,dr=rtz)",
    "grit1(e=e2m1,k0=16,s0=e4m3fnuz,esr=ratio)",
    "grit1(e=e2m1,k0=16,s0=b16,esr=ratio)",
    "grit1(e=u4b,k0=16,s0=f16,esr=ratio)",
    "grit1(e=e2m1,k0=16,s0=e4m3)",
    "grit1(e=e2m1,k0=+16,s0=e4m3,esr=ratio)",
    "grit1(e=e2m1,k0=16,s0=e4m3,k1=4,esr=ratio)",
    "grit1(e=e2m1,k0=16,s0=e4m3,zpc=asis,esr=ratio)",
    "grit1(e=e2m1,e=e2m1,k0=16,s0=e4m3,esr=ratio)",
    "grit1(e=e2m1,k0=16,s0=e4m3,xx=1,esr=ratio)",
    "grit1()",
    "grit2(e=e2m1)",
    "grit1(e=s8,k0=32,s0=f16,sp=4:2:u2:sorted,esr=ratio)",
)


@pytest.mark.parametrize("text", SPELLINGS)
def test_canonical_forms_equal_the_package(text: str) -> None:
    try:
        wanted = grit.canonicalize(text)
    except Exception:
        with pytest.raises(grades.GradeError):
            grades.canonical(text)
        return
    assert grades.canonical(text) == wanted
    assert grades.grade_id(wanted) == grit.grade_id_of(wanted)
    assert grades.decode_projection(wanted) == grit.decode_projection(wanted)


@pytest.mark.parametrize(
    "text",
    [
        "grit1(e=u4,k0=128,s0=binary16,zp=u4,zpc=minus1,esr=ratiomaxabs)",
        "grit1(e=s8,k0=32,s0=binary16,esr=ratiomaxabs)",
        "grit1(e=e2m1,k0=32,s0=e8m0,po=msb,er=rtn,es=ovfinf,esr=exp2ceilmaxabs,esn=ftz,dr=rtp)",
    ],
)
def test_an_unregistered_grade_is_recovered_from_its_id(text: str) -> None:
    theirs = grit.desc_from_grade_string(grit.canonicalize(text))
    desc = own.Descriptor.unpack(theirs.pack())
    assert own.recovered_grade(desc) == grades.canonical(text)


def test_a_frame_that_contradicts_its_id_is_not_recovered() -> None:
    text = "grit1(e=u4,k0=128,s0=binary16,zp=u4,zpc=minus1,esr=ratiomaxabs)"
    theirs = grit.desc_from_grade_string(grit.canonicalize(text)).replace(k0=64)
    assert own.recovered_grade(own.Descriptor.unpack(theirs.pack())) is None


def test_registry_equals_the_package() -> None:
    assert {name: grades.grade_id(text) for name, text in grades.REGISTRY.items()} == {
        name: grit.grade_id_of(text) for name, text in grit.GRADE_REGISTRY.items()
    }
    for word, name in words.PLACEMENTS.items():
        assert words.placement_name(word) == name
        assert name in grit.placement_name(word)
    for word in (0, 0x2000000000000001, 0x8000000000000001, 0xF000000000000000, 0x1000000000000099):
        assert words.placement_known(word) == placement_known(word)
