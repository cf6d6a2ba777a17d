"""The test's own hands on the Manager's memory: its slabs, through /proc."""

import mmap
import os
import struct

MAGIC, VERSION = 0x49564B4F, 1
FRAGMENTS = 4  # layers of the tiny model


class Slabs:
    """Writable mappings of every slab memfd of a Manager."""

    def __init__(self, pid):
        self.maps = []
        folder = f"/proc/{pid}/fd"
        seen = set()
        for entry in os.listdir(folder):
            path = os.path.join(folder, entry)
            name = os.readlink(path)
            if "memfd:" not in name or "slab" not in name:
                continue
            fd = os.open(path, os.O_RDWR)
            identity = os.fstat(fd).st_ino
            if identity not in seen:
                seen.add(identity)
                self.maps.append(mmap.mmap(fd, os.fstat(fd).st_size))
            os.close(fd)

    def images(self):
        """(map, offset, header bytes, slot bytes) of every slot image."""
        start = struct.pack("<IHHI", MAGIC, VERSION, 0, FRAGMENTS)
        for memory in self.maps:
            at = memory.find(start)
            while at >= 0:
                header, _, slot = struct.unpack_from("<IQQ", memory, at + 12)
                if at % 64 == 0 and 0 < header < slot <= len(memory) - at:
                    yield memory, at, header, slot
                at = memory.find(start, at + 64)

    def flip(self, offset_in_image):
        """One bit in every image; returns how many there were."""
        count = 0
        for memory, at, header, slot in list(self.images()):
            memory[at + offset_in_image(header, slot)] ^= 0x10
            count += 1
        return count

    def close(self):
        for memory in self.maps:
            memory.close()
