"""Rewrite an sdist with one time for all its files, in order of their names."""

import gzip
import io
import sys
import tarfile
from pathlib import Path


def main() -> None:
    """Rewrite the archive named first with the time named second."""
    path, when = Path(sys.argv[1]), int(sys.argv[2])
    plain = io.BytesIO()
    with (
        tarfile.open(path) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda m: m.name):
            kind = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.mtime, member.mode = when, kind
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=when) as out:
        out.write(plain.getvalue())


if __name__ == "__main__":
    main()
