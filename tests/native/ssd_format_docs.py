"""docs/ssd-format.md tells the truth: a reader written from it alone finds in our stores what
our own scan finds, in whole ones and in damaged ones; the bytes that it shows are ours.

    ssd_format_docs.py SSD_WRITTEN_STORE
"""

import io
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ssd_reader
from ssd_reader import Damaged, Record

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/ssd-format.md").read_text()
GOLDEN = {
    name: bytes.fromhex(text) for name, text in re.findall(r"^```hex (\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
}
EPOCH = 3 << 40


def page(name):
    return GOLDEN[name].ljust(ssd_reader.PAGE, b"\0")


def as_line(path, segment, entry):
    line = {"path": path, "segment": segment, "hash": entry.hash.hex(), "sequence": entry.sequence}
    if isinstance(entry, Record):
        space = entry.space
        line |= {"kind": "record", "digest": space.digest.hex(), "group": space.group, "page": entry.first}
        line |= {"text": space.text, "marks": [list(mark) for mark in entry.marks]}
    else:
        line |= {"kind": "tombstone", "digest": entry.digest.hex(), "group": entry.group}
    return line


def in_order(lines):
    return sorted(lines, key=lambda line: json.dumps(line, sort_keys=True))


def read_paths(paths):
    lines, damaged = [], 0
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            superblock = ssd_reader.read_superblock(file)
            for n in range(superblock.segments):
                segment = ssd_reader.Segment(file, superblock, n)
                lines += [as_line(number, n, entry) for entry in segment.entries()]
                damaged += segment.damaged
    return lines, damaged


class Golden(unittest.TestCase):
    def test_bytes_are_those_of_the_code(self):
        test = (ROOT / "src/ssd/format_test.cc").read_text()
        code = dict(re.findall(r'^    \{"(\w+)",\s*((?:"[0-9a-f]+"\s*)+)\}', test, re.MULTILINE))
        self.assertEqual(set(code), {"superblock", "segment_header", "batch", "footer", "trailer"})
        self.assertEqual(
            {name: "".join(re.findall("[0-9a-f]{2}", text)) for name, text in code.items()},
            {name: data.hex() for name, data in GOLDEN.items()},
        )

    def test_superblock(self):
        superblock = ssd_reader.read_superblock(io.BytesIO(page("superblock")))
        self.assertEqual((superblock.epoch, superblock.update, superblock.path), (3, 9, 1))
        self.assertEqual((superblock.segment, superblock.segments, superblock.first), (64 * 4096, 160, 1 << 20))
        self.assertEqual([sequence for _, sequence in superblock.drops], [EPOCH + 4, EPOCH + 5])

    def test_lists(self):
        life = ssd_reader.open_page(page("segment_header"), b"OKVSEGMT").life
        self.assertEqual((life.epoch, life.sequence, life.number), (3, EPOCH + 7, 5))
        batch = ssd_reader.read_list(lambda _: page("batch"), b"OKVBATCH", life, 1)
        footer = ssd_reader.read_list(lambda _: page("footer"), b"OKVFOOTR", life, 62)
        self.assertEqual(batch.entries, footer.entries)
        records = [entry for entry in batch.entries if isinstance(entry, Record)]
        self.assertEqual([(r.first, r.pages, r.sequence - EPOCH) for r in records], [(2, 3, 11), (8, 3, 13)])
        self.assertEqual(records[0].marks, [(0x1111, 100), (0x2222, 101)])
        self.assertEqual(records[0].space.text, "model=tiny;dtype=f32")
        self.assertEqual(records[0].space.fragments, [(0, 0, 0, 4096), (0, 1, 0, 4096), (3, 0, 0, 8)])
        ssd_reader.open_page(page("trailer"), b"OKVTRAIL")
        with self.assertRaises(Damaged):
            ssd_reader.read_list(lambda _: page("batch"), b"OKVBATCH", life, 2)


class ReaderFromDocs(unittest.TestCase):
    def compare(self, seed):
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run([WRITER, place, str(seed)], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            ours = [json.loads(line) for line in done.stdout.splitlines()]
            paths = [f"{place}/0", f"{place}/1"]
            read, damaged = read_paths(paths)
            self.assertEqual(in_order(read), in_order(ours), f"seed {seed}")
            return ours, ssd_reader.read_store(paths), damaged

    def test_reader_from_docs_finds_the_same(self):
        records = 0
        for seed in range(0, 12, 2):
            ours, _, _ = self.compare(seed)
            records += len(ours)
        self.assertGreater(records, 60)

    def test_reader_from_docs_finds_the_same_in_damaged_stores(self):
        damaged = sum(self.compare(seed)[2] for seed in range(1, 25, 2))
        self.assertGreater(damaged, 5)

    def test_what_counts(self):
        """The highest sequence of a key, unless a tombstone or a drop is as high."""
        ours, counted, _ = self.compare(4)
        wanted = {}
        for line in sorted(ours, key=lambda line: line["sequence"]):
            key = (line["digest"], line["group"], line["hash"])
            wanted[key] = line if line["kind"] == "record" else None
        dropped = bytes(range(0x50, 0x70)).hex()
        sequences = {
            line["sequence"]
            for line in wanted.values()
            if line and not (line["digest"] == dropped and line["sequence"] <= EPOCH + 7)
        }
        self.assertEqual({record.sequence for _, _, record in counted}, sequences)
        self.assertLess(len(sequences), sum(line["kind"] == "record" for line in ours))
        self.assertTrue(any(line["kind"] == "tombstone" for line in ours))


if __name__ == "__main__":
    WRITER = sys.argv.pop(1)
    unittest.main()
