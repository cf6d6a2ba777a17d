"""Reads a path of the SSD store, written from docs/ssd-format.md alone and independent of the
code that writes it. Raises Damaged where a page or a list is not what the document asks for.

    ssd_reader.py PATH...   prints every record that counts, one JSON object a line
"""

import collections
import json
import struct
import sys

PAGE = 4096
FRAME = struct.Struct("<8sHHI16sQQIIII")
ALL = (1 << 64) - 1


class Damaged(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Damaged(what)


# ---- checksums ----


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


G, C1, C2 = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0x9FB21C651E98DF25


def raw(data):
    data += bytes(-len(data) % 8)
    total = 0
    for i, (word,) in enumerate(struct.iter_unpack("<Q", data)):
        x = word ^ (i + 1) * G & ALL
        x ^= (x >> 25 | x << 39) & ALL ^ (x >> 50 | x << 14) & ALL
        x = x * C1 & ALL
        x ^= x >> 32
        x = x * C2 & ALL
        total += x ^ x >> 32
    return total & ALL


def fin(x):
    x ^= x >> 32
    x = x * C1 & ALL
    x ^= x >> 29
    x = x * C2 & ALL
    return x ^ x >> 32


def check(data, seed, layer, component, encoding):
    ident = fin(seed ^ fin((layer << 32 | component << 16 | encoding) + G & ALL))
    return fin(raw(data) ^ fin(ident + len(data) * G & ALL))


# ---- pages ----

Life = collections.namedtuple("Life", "uuid epoch sequence number")
Page = collections.namedtuple("Page", "life page index pages body")


def open_page(data, magic):
    need(len(data) == PAGE, "cut page")
    kind, version, zero, crc, uuid, epoch, sequence, number, page, index, pages = FRAME.unpack_from(data)
    need(kind == magic, f"no {magic.decode()} here")
    need(crc == crc32c(data[:12] + bytes(4) + data[16:]), "checksum")
    need(version == 1, f"version {version}")
    need(zero == 0 and index < pages, "frame")
    return Page(Life(uuid, epoch, sequence, number), page, index, pages, data[FRAME.size :])


Superblock = collections.namedtuple("Superblock", "uuid epoch update path segment first segments created drops")


def read_superblock_copy(data, copy):
    page = open_page(data, b"OKVSTORE")
    need((page.page, page.index, page.pages) == (copy, 0, 1), "place")
    path, size, segment, first, segments, n, created = struct.unpack_from("<IIQQIIQ", page.body)
    paths, numbers = struct.unpack_from("<II", page.body, 40)
    need(path == page.life.number and path < 1 << 16 and size == PAGE, "geometry")
    need(paths <= 64 and numbers <= 1 << 16, "geometry")
    need(segment % PAGE == 0 and 1 << 18 <= segment <= 1 << 30 and first % PAGE == 0, "geometry")
    need(1 <= segments <= 1 << 20 and n <= 64 and 1 <= page.life.epoch < 1 << 23, "geometry")
    drops = [struct.unpack_from("<32sQ", page.body, 64 + 40 * i) for i in range(n)]
    need(not any(page.body[48:64]) and not any(page.body[64 + 40 * n :]), "padding")
    life = page.life
    return Superblock(life.uuid, life.epoch, life.sequence, path, segment, first, segments, created, drops)


def read_superblock(file):
    file.seek(0)
    copies, wrong = [], []
    for copy in (0, 1):
        try:
            copies.append(read_superblock_copy(file.read(PAGE), copy))
        except Damaged as damage:
            wrong.append(str(damage))
    need(not any(w.startswith("version") for w in wrong), "; ".join(wrong))
    need(copies, "; ".join(wrong))
    return max(copies, key=lambda s: (s.epoch, s.update))


# ---- lists ----

Space = collections.namedtuple("Space", "number group shards digest text image_bytes fragments")
Record = collections.namedtuple("Record", "space hash sequence first pages marks")
Tombstone = collections.namedtuple("Tombstone", "digest group hash sequence")
Batch = collections.namedtuple("Batch", "number pages entries crc lowest whole")


def read_space(data):
    number, group, shards, t, f, zero, image_bytes, digest = struct.unpack_from("<HHHHIIQ32s", data, 8)
    need(number < 256 and 1 <= shards <= 64 and t <= 512 and 1 <= f <= 4096 and zero == 0, "space")
    fragments = [struct.unpack_from("<IHHQ", data, 64 + 16 * i) for i in range(f)]
    text = data[64 + 16 * f :]
    need(len(text) == -(-t // 8) * 8 and not any(text[t:]), "space text")
    size = -(-(32 + 8 * f) // 128) * 128 + sum(-(-bytes_ // 128) * 128 for *_, bytes_ in fragments)
    need(size == image_bytes <= 1 << 28, "image bytes")
    return Space(number, group, shards, digest, text[:t].decode("ascii"), image_bytes, fragments)


def read_record(data, spaces):
    sequence, first, pages, number, shards, zero, key = struct.unpack_from("<QIIHHI32s", data, 8)
    need(number in spaces and zero == 0, "record of no space")
    space = spaces[number]
    need(shards == space.shards and pages == -(-space.image_bytes // PAGE), "record")
    need(len(data) == 64 + 16 * shards, "record")
    return Record(space, key, sequence, first, pages, list(struct.iter_unpack("<QQ", data[64:])))


def read_entries(data, count):
    spaces, out, at = {}, [], 0
    for _ in range(count):
        need(at + 8 <= len(data), "cut entry")
        kind, zero, size = struct.unpack_from("<HHI", data, at)
        need(zero == 0 and size >= 8 and size % 8 == 0 and at + size <= len(data), "entry")
        entry = data[at : at + size]
        at += size
        if kind == 1:
            out.append(read_record(entry, spaces))
        elif kind == 2:
            space = read_space(entry)
            need(space.number not in spaces, "space twice")
            spaces[space.number] = space
        elif kind == 3:
            need(size == 88, "tombstone")
            sequence, group, digest, key = struct.unpack("<QH6x32s32s", entry[8:])
            out.append(Tombstone(digest, group, key, sequence))
        else:
            raise Damaged(f"entry of kind {kind}")
    need(at == len(data), "bytes left over")
    return out


def read_list(page_at, magic, life, first):
    """The list whose first page is `first`; page_at(n) gives the bytes of page n."""
    head = open_page(page_at(first), magic)
    body = b""
    for i in range(head.pages):
        page = open_page(page_at(first + i), magic)
        need(page[:4] == (life, first + i, i, head.pages), "page of something else")
        body += page.body
    count, size, crc, number, whole, zero, lowest = struct.unpack_from("<IIIIIIQ", body)
    need(zero == 0 and -(-(32 + size) // 4032) == head.pages, "list header")
    entries = body[32 : 32 + size]
    need(crc == crc32c(entries) and not any(body[32 + size :]), "list checksum")
    out = read_entries(entries, count)
    sequences = [entry.sequence for entry in out]
    need(all(1 <= s >> 40 <= life.epoch for s in sequences), "sequence")
    need(lowest == min(sequences, default=0), "lowest sequence")
    return Batch(number, head.pages, out, crc, lowest, whole)


# ---- segments ----


class Segment:
    def __init__(self, file, superblock, number):
        self.file, self.superblock, self.number = file, superblock, number
        self.pages = superblock.segment // PAGE
        self.life = None
        self.damaged = 0

    def page_at(self, number):
        need(0 <= number < self.pages, "beyond the segment")
        self.file.seek(self.superblock.first + self.number * self.superblock.segment + number * PAGE)
        return self.file.read(PAGE)

    def image(self, record, shard):
        pages = range(record.first + shard * record.pages, record.first + (shard + 1) * record.pages)
        return b"".join(self.page_at(page) for page in pages)[: record.space.image_bytes]

    def entries(self):
        """Records and tombstones; nothing where the segment is free."""
        try:
            header = open_page(self.page_at(0), b"OKVSEGMT")
            need((header.page, header.index, header.pages) == (0, 0, 1), "place")
            pages, zero, _created = struct.unpack_from("<IIQ", header.body)
            need(pages == self.pages and zero == 0 and not any(header.body[16:]), "segment header")
            self.life = self.checked(header.life)
        except Damaged:
            return self.without_header()
        try:
            return self.by_footer()
        except Damaged:
            return self.by_batches()

    def checked(self, life):
        need((life.uuid, life.number) == (self.superblock.uuid, self.number), "another segment's page")
        need(life.epoch == life.sequence >> 40 and 1 <= life.epoch <= self.superblock.epoch, "epoch")
        return life

    def without_header(self):
        """What the footer lists, where no later life has written over it."""
        try:
            self.life = self.checked(open_page(self.page_at(self.pages - 1), b"OKVTRAIL").life)
            first = open_page(self.page_at(1), b"OKVBATCH")
            need(first[:3] == (self.life, 1, 0), "another life's batch")
            return self.by_footer()
        except Damaged:
            self.life = None
            return []

    def by_footer(self):
        trailer = open_page(self.page_at(self.pages - 1), b"OKVTRAIL")
        need(trailer[:4] == (self.life, self.pages - 1, 0, 1), "trailer")
        first, count, crc, batches = struct.unpack_from("<IIII", trailer.body)
        need(first >= 1 and first + count == self.pages - 1 and not any(trailer.body[16:]), "trailer")
        footer = read_list(self.page_at, b"OKVFOOTR", self.life, first)
        need((footer.crc, footer.pages, footer.whole, footer.number) == (crc, count, count, batches), "footer")
        free = 1
        for entry in footer.entries:
            if isinstance(entry, Record):
                need(free <= entry.first, "order of images")
                free = entry.first + entry.pages * entry.space.shards
        need(free <= first, "images in the footer")
        return footer.entries

    def batch_at(self, page, above):
        batch = read_list(self.page_at, b"OKVBATCH", self.life, page)
        need(batch.number > above and batch.pages <= 64 and page + batch.whole + 2 <= self.pages, "batch")
        free = page + batch.pages
        for entry in batch.entries:
            if isinstance(entry, Record):
                need(entry.first == free, "order of images")
                free += entry.pages * entry.space.shards
        need(free == page + batch.whole, "batch is not filled")
        return batch

    def by_batches(self):
        found, page, last = [], 1, -1
        while page < self.pages:
            try:
                batch = self.batch_at(page, last)
            except Damaged:
                page += 1
                continue
            last, page = batch.number, page + batch.whole
            for entry in batch.entries:
                if isinstance(entry, Record) and not self.verified(entry):
                    self.damaged += 1
                else:
                    found.append(entry)
        return found

    def verified(self, record):
        return all(self.image_is_right(record, shard) for shard in range(record.space.shards))

    def image_is_right(self, record, shard):
        space, (digest, revision), image = record.space, record.marks[shard], self.image(record, shard)
        seed = raw(space.digest + struct.pack("<H", space.group) + record.hash + struct.pack("<HQ", shard, revision))
        fragments = len(space.fragments)
        size = -(-(32 + 8 * fragments) // 128) * 128
        header = image[:size]
        if check(header, seed, 0xFFFFFFFF, 0, 0) != digest:
            return False
        fixed = struct.pack("<4sHHIIQQ", b"OKVI", 1, 0, fragments, size, revision, space.image_bytes)
        if header[:32] != fixed:
            return False
        at = size
        for i, (layer, component, encoding, length) in enumerate(space.fragments):
            (wanted,) = struct.unpack_from("<Q", header, 32 + 8 * i)
            if check(image[at : at + length], seed, layer, component, encoding) != wanted:
                return False
            at += -(-length // 128) * 128
        return True


# ---- stores ----


def read_store(paths):
    """[(segment, record)] of every record that counts."""
    best, tombstones, drops = {}, {}, {}
    for path in paths:
        with open(path, "rb") as file:
            superblock = read_superblock(file)
            for digest, sequence in superblock.drops:
                drops[digest] = max(sequence, drops.get(digest, 0))
            for number in range(superblock.segments):
                segment = Segment(file, superblock, number)
                for entry in segment.entries():
                    if isinstance(entry, Tombstone) and entry.group == 0xFFFF:
                        drops[entry.digest] = max(entry.sequence, drops.get(entry.digest, 0))
                        continue
                    if isinstance(entry, Tombstone):
                        key = (entry.digest, entry.group, entry.hash)
                        tombstones[key] = max(entry.sequence, tombstones.get(key, 0))
                        continue
                    key = (entry.space.digest, entry.space.group, entry.hash)
                    if key not in best or best[key][2].sequence < entry.sequence:
                        best[key] = (path, number, entry)
    return [
        found
        for key, found in best.items()
        if found[2].sequence > max(tombstones.get(key, 0), drops.get(key[0], 0))
    ]


def main():
    for path, number, record in read_store(sys.argv[1:]):
        line = {
            "path": path, "segment": number, "page": record.first, "sequence": record.sequence,
            "namespace": record.space.text, "group": record.space.group, "hash": record.hash.hex(),
        }  # fmt: skip
        print(json.dumps(line))


if __name__ == "__main__":
    main()
