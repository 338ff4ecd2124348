"""A packed file that is cut or damaged proves nothing, whatever stands before the damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from collections.abc import Callable

import pytest
from tool_outputs import FI_INFO, fi_info

from infra.probes.readers.lines import BLOCK, blocks
from tasks.judge import JudgeResult, judge

PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
CHECKSUM_FROM_END = {"gzip": 6, "bzip2": 3, "xz": 40}  # bytes: within the sum of the data, or of its index


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


HARMS: dict[str, Callable[[bytes, str], bytes]] = {
    "cut in the data": lambda data, _: data[: len(data) // 2],
    "cut in the trailer": lambda data, _: data[:-3],
    "checksum altered": lambda data, name: flipped(data, len(data) - CHECKSUM_FROM_END[name]),
    "data altered": lambda data, _: flipped(data, len(data) // 2),
    "only its first bytes": lambda data, _: data[:2],
    "only its header": lambda data, _: data[:12],
    "a second one is cut": lambda data, _: data + data[: len(data) // 2],
    "other bytes behind it": lambda data, _: data + bytes(512),
}


def answer(data: bytes) -> JudgeResult:
    return judge(io.BytesIO(data), machine_type="p5en.48xlarge")


@pytest.mark.parametrize("text", [FI_INFO, fi_info(range(4))], ids=["all-devices", "too-few"])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("packer", PACKERS)
def test_a_damaged_file_is_unmeasured_and_to_be_copied_again(packer: str, harm: str, text: str) -> None:
    """Neither pass nor fail: it names the format and the place."""
    result = answer(HARMS[harm](PACKERS[packer](text.encode()), packer))
    assert (result.exit_code, result.verdict) == (4, "undetermined")
    (finding,) = result.findings
    assert finding.code == "damaged-file"
    assert packer in finding.observed
    assert "byte" in finding.observed
    assert "copy it again" in finding.remedy


@pytest.mark.parametrize("packer", PACKERS)
def test_a_whole_file_is_judged_as_its_text(packer: str) -> None:
    """Also several, one behind the other; and an empty one holds nothing, which is no damage."""
    pack = PACKERS[packer]
    assert answer(pack(FI_INFO.encode())).exit_code == 0
    half = len(FI_INFO) // 2
    assert answer(pack(FI_INFO[:half].encode()) + pack(FI_INFO[half:].encode())).exit_code == 0
    assert [f.code for f in answer(pack(b"")).findings] == ["empty"]


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("size", [BLOCK, 2 * BLOCK + 1])
def test_every_byte_of_a_large_file_is_unpacked(packer: str, size: int) -> None:
    """Text that packs to next to nothing, and text that does not: what waits in the unpacker is fetched, too."""
    for line in (b"a" * 63 + b"\n", random.Random(size).randbytes(24).hex().encode() + b"\n"):
        text = (line * (size // len(line) + 1))[: size - 1] + b"\n"
        read = list(blocks(io.BytesIO(PACKERS[packer](text))))
        assert b"".join(block.data for block in read) == text
        assert not any(block.damage for block in read)
