"""Compares the pixels of Kiln with those of Pillow over the test images of image libraries.

The images are those in Debian's sources of the libraries, which apt-get downloads (150 MB). Nothing is installed, and
the machine's own lists of packages stay as they are:

    python3 -m venv /tmp/compare/venv && /tmp/compare/venv/bin/pip install pillow numpy
    cargo build --example pixels
    /tmp/compare/venv/bin/python scripts/compare-with-pillow.py --kiln target/debug/examples/pixels --work /tmp/compare

Prints the figures of docs/data-loading.md, and each file that differs by more than 2 levels or that only one of the two
reads. A file is decoded at its own size and turned upright by its EXIF, as RGB. `--images DIRECTORY` compares the files
of a directory instead.
"""

import argparse
import collections
import hashlib
import io
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SOURCES = [
    "exiv2",
    "gdk-pixbuf",
    "golang-golang-x-image",
    "graphicsmagick",
    "haskell-juicypixels",
    "imagemagick",
    "leptonlib",
    "libgd2",
    "libjpeg-turbo",
    "libpng1.6",
    "libwebp",
    "pillow",
    "tiff",
    "vips",
]
FORMATS = {"JPEG", "PNG", "TIFF", "GIF", "WEBP", "BMP", "PPM", "MPO", "DIB"}
MOST_PIXELS = 100_000_000


def by_its_first_bytes(start):
    """Whether a file has one of the formats that Kiln reads."""
    return (
        start.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"GIF8", b"BM"))
        or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")
        or (start[:1] == b"P" and start[1:2] in b"1234567" and start[2:3] in b" \n\r\t#" and len(start) > 2)
    )


def download(work, suite, mirror):
    """Downloads the sources, and writes their images to `work`/images/SOURCE/, each content once."""
    apt, sources = work / "apt", work / "sources"
    for folder in (apt / "lists" / "partial", apt / "cache" / "archives" / "partial", sources):
        folder.mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb-src [signed-by={keyring}] {mirror} {suite} main\n")
    options = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "-q", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    subprocess.run([*command, "update"], check=True)
    seen = set()
    for name in SOURCES:
        folder = sources / name
        if not folder.exists():
            folder.mkdir()
            subprocess.run([*command, "source", "--download-only", name], cwd=folder, check=True)
        for archive in sorted(folder.glob("*.orig.tar.*")):
            if archive.suffix != ".asc":
                extract(archive, work / "images" / name, seen)


def extract(archive, folder, seen):
    with tarfile.open(archive) as files:
        for member in files:
            if not member.isfile() or member.size < 8:
                continue
            data = files.extractfile(member).read()
            digest = hashlib.sha256(data).digest()
            if not by_its_first_bytes(data[:16]) or digest in seen:
                continue
            seen.add(digest)
            path = folder / member.name.partition("/")[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def pillow(path):
    """RGB pixels [height, width, 3] as Pillow reads them, and the format; or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(path) as image:
                kind = image.format
                if kind not in FORMATS:
                    return None, kind
                if image.width * image.height > MOST_PIXELS:
                    return "too large to compare", kind
                image.load()
                upright = ImageOps.exif_transpose(image)
                if upright.mode.startswith("I;16") or (upright.mode == "I" and kind in ("PNG", "PPM")):
                    # convert("RGB") would clip at 255.
                    high = (np.asarray(upright).astype(np.int64) >> 8).astype(np.uint8)
                    return np.repeat(high[:, :, None], 3, 2), kind
                if upright.mode in ("I", "F", "LAB"):
                    return f"mode {upright.mode}, which has no RGB of 8 bits", kind
                if upright.mode in ("P", "PA", "LA", "RGBA", "RGBX"):
                    upright = upright.convert("RGBA")  # a transparent colour of a palette stays as it is
                return np.asarray(upright.convert("RGB")), kind
        except Exception as error:  # whatever a plugin raises: it does not read the file
            return " ".join(f"{type(error).__name__}: {error}".split())[:160], None


def kiln(process, path):
    """The same from the example `pixels`."""
    process.stdin.write(f"{path}\n".encode())
    process.stdin.flush()
    line = process.stdout.readline().decode().rstrip("\n")
    if not line.startswith("ok "):
        return line.removeprefix("error ").replace(str(path), "FILE")
    height, width = map(int, line.split()[1:])
    return np.frombuffer(process.stdout.read(height * width * 3), np.uint8).reshape(height, width, 3)


def outcome(mine, theirs):
    """One of the columns of the table, and its detail."""
    if isinstance(mine, str) and isinstance(theirs, str):
        return "refused by both", f"Kiln: {mine} | Pillow: {theirs}"
    if isinstance(mine, str):
        return "Pillow only", mine
    if isinstance(theirs, str):
        return "Kiln only", theirs
    if mine.shape != theirs.shape:
        return "other size", f"{mine.shape[:2]} and Pillow {theirs.shape[:2]}"
    off = np.abs(mine.astype(np.int16) - theirs)
    most = int(off.max(initial=0))
    if most == 0:
        return "equal", ""
    if most <= 2:
        return "within 2", f"{most}"
    return "more", f"most {most}, mean {off.mean():.3f}, more than 2 in {100 * (off.max(2) > 2).mean():.2f} % of pixels"


OUTCOMES = ["equal", "within 2", "more", "other size", "Kiln only", "Pillow only", "refused by both"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kiln", type=Path, required=True, help="the example `pixels`, built")
    parser.add_argument("--work", type=Path, help="a directory for what is downloaded")
    parser.add_argument("--images", type=Path, help="compares the files of this directory; downloads nothing")
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    arguments = parser.parse_args()
    if (arguments.work is None) == (arguments.images is None):
        parser.error("give either --work or --images")
    images = arguments.images
    if images is None:
        images = arguments.work / "images"
        if not images.exists():
            download(arguments.work.resolve(), arguments.suite, arguments.mirror)
    process = subprocess.Popen([arguments.kiln], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    table = collections.defaultdict(collections.Counter)
    lines = []
    for path in sorted(path for path in images.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            start = file.read(16)
        if not by_its_first_bytes(start):
            continue
        theirs, kind = pillow(path)
        if theirs is None:
            continue
        kind = {"MPO": "JPEG", "PPM": "PNM", "DIB": "BMP"}.get(kind, kind) or format_of(start)
        which, detail = outcome(kiln(process, path), theirs)
        table[kind][which] += 1
        if which not in ("equal", "within 2"):
            lines.append(f"{which}\t{kind}\t{path.relative_to(images)}\t{detail}")
    process.stdin.close()
    if process.wait() != 0:
        sys.exit("the example `pixels` failed")
    print("\n".join(sorted(lines)))
    print(f"\nPillow {Image.__version__}")
    print("| Format | files | " + " | ".join(OUTCOMES) + " |")
    print("|---|" + "---|" * (1 + len(OUTCOMES)))
    for kind in sorted(table):
        counts = [table[kind][which] for which in OUTCOMES]
        print(f"| {kind} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    totals = [sum(counter[which] for counter in table.values()) for which in OUTCOMES]
    print(f"| all | {sum(totals)} | " + " | ".join(map(str, totals)) + " |")


def format_of(start):
    """The format of a file that Pillow does not open."""
    formats = [(b"\xff\xd8", "JPEG"), (b"\x89PNG", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WEBP"), (b"BM", "BMP"), (b"P", "PNM")]
    return next((name for magic, name in formats if start.startswith(magic)), "TIFF")


if __name__ == "__main__":
    main()
