"""Fetches photographs that Debian carries and makes from them what the loaders are measured on.

    python benches/peers/photos.py benches/peers/photos --count 40

The packages lomiri-wallpapers-16.04 and lomiri-wallpapers-20.04 hold 19 photographs of 1.5 to 24 megapixels.
From those that are large enough, this makes folders of classes (one per photograph) of JPEG files at quality
90:

    1mp, 4mp, 12mp            baseline
    12mp-progressive          the same pixels as 12mp
    mixed                     jpeg, png and tiff (in tiles) of 1 to 100 megapixels

An image is a random part of a photograph, mirrored every second time, brought to the size; what is larger
than any photograph is put together from several. Sources, authors and licences are printed and written to
SOURCES.txt. Needs apt-get and dpkg-deb.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import numpy as np
    import tifffile
    from PIL import Image
except ImportError as error:
    sys.exit(f"photos.py needs pillow, numpy and tifffile (pip install -r benches/peers/requirements.txt): {error}")

PACKAGES = ("lomiri-wallpapers-16.04", "lomiri-wallpapers-20.04")
MIXED = (1, 4, 12, 25, 50, 100)  # megapixels
QUALITY = 90


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"photos.py: '{' '.join(command)}' failed: {done.stderr.strip() or done.stdout.strip()}")


def fetch(root: Path) -> list[Path]:
    """The photographs, unpacked."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            sys.exit(f"photos.py: no {program} here, expected Debian or one of its kin")
    packages, unpacked = root / "packages", root / "originals"
    packages.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        if not list(packages.glob(f"{name}_*.deb")):
            run("apt-get", "download", name, cwd=packages)
        run(
            "dpkg-deb",
            "-x",
            str(sorted(packages.glob(f"{name}_*.deb"))[-1].resolve()),
            str(unpacked.resolve()),
            cwd=root,
        )
    photos = sorted((unpacked / "usr/share/backgrounds").glob("*.jpg"))
    if not photos:
        sys.exit(f"photos.py: no photographs in '{unpacked}', expected them in usr/share/backgrounds")
    return photos


def licences(root: Path, photos: list[Path]) -> str:
    """What Debian's copyright files say of each photograph."""
    said = {}
    for name in PACKAGES:
        text = (root / "originals/usr/share/doc" / name / "copyright").read_text()
        for paragraph in text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
            if "Files" in fields and "License" in fields:
                said[Path(fields["Files"]).name] = f"{fields.get('Copyright', '?').strip()}, {fields['License']}"
    lines = [f"Debian packages {' and '.join(PACKAGES)}; full licences in originals/usr/share/doc/*/copyright"]
    lines += [f"{photo.name}: {said.get(photo.name, 'not named in the copyright file')}" for photo in photos]
    return "\n".join(lines)


def part(photo: Image.Image, megapixels: float, variant: int, rng: random.Random) -> Image.Image:
    """A part of the photograph of the same shape, brought to the size: all of it at first, then random ones."""
    width, height = photo.size
    least = (megapixels * 1e6 / (width * height)) ** 0.5
    side = 1.0 if variant == 0 else rng.uniform(least, 1.0)
    w, h = int(width * side), int(height * side)
    left, top = rng.randint(0, width - w), rng.randint(0, height - h)
    size = round(width * least), round(height * least)
    made = photo.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + w, top + h))
    return made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if variant % 2 else made


def mosaic(photos: list[Path], megapixels: int, rng: random.Random) -> Image.Image:
    """An image of 4:3 that is filled with photographs at their own scale."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    canvas = Image.new("RGB", (height * 4 // 3, height))
    top = 0
    while top < canvas.height:
        left, row = 0, canvas.height
        while left < canvas.width:
            with Image.open(rng.choice(photos)) as photo:
                canvas.paste(photo.convert("RGB"), (left, top))
                left, row = left + photo.width, min(row, photo.height)
        top += row
    return canvas


def sets(root: Path, photos: list[Path], count: int, rng: random.Random) -> None:
    for megapixels in (1, 4, 12):
        large = []
        for path in photos:
            with Image.open(path) as photo:
                if photo.width * photo.height >= megapixels * 1e6:
                    large.append(path)
        kinds = {f"{megapixels}mp": False} | ({"12mp-progressive": True} if megapixels == 12 else {})
        for name in kinds:
            shutil.rmtree(root / name, ignore_errors=True)
        for index, path in enumerate(large[:count]):
            with Image.open(path) as opened:
                photo = opened.convert("RGB")
            for variant, number in enumerate(range(index, count, len(large))):
                image = part(photo, megapixels, variant, rng)
                for name, progressive in kinds.items():
                    folder = root / name / path.stem
                    folder.mkdir(parents=True, exist_ok=True)
                    image.save(folder / f"{number:04}.jpg", quality=QUALITY, progressive=progressive)
        print(f"{', '.join(kinds)}: {count} images of {min(len(large), count)} photographs", flush=True)


def mixed(root: Path, photos: list[Path], largest: int, rng: random.Random) -> None:
    shutil.rmtree(root / "mixed", ignore_errors=True)
    for kind in ("jpeg", "png", "tiff"):
        (root / "mixed" / kind).mkdir(parents=True)
    sizes = [megapixels for megapixels in MIXED if megapixels <= largest]
    for megapixels in sizes:
        image = mosaic(photos, megapixels, rng)
        name = f"{megapixels:03}mp"
        image.save(root / "mixed/jpeg" / f"{name}.jpg", quality=QUALITY)
        image.save(root / "mixed/png" / f"{name}.png", compress_level=1)
        target = root / "mixed/tiff" / f"{name}.tif"
        tifffile.imwrite(target, np.asarray(image), photometric="rgb", tile=(256, 256), compression="zlib")
    print(f"mixed: jpeg, png and tiled tiff of {', '.join(map(str, sizes))} megapixels", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where everything is put; sets that are there are made again")
    parser.add_argument("--count", type=int, default=40, help="images per set [default: 40]")
    parser.add_argument("--largest", type=int, default=100, help="megapixels of the largest image in mixed")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name in ("count", "largest"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, expected at least 1")
    Image.MAX_IMAGE_PIXELS = None
    try:
        args.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make '{args.directory}': {error.strerror}")
    photos = fetch(args.directory)
    sources = licences(args.directory, photos)
    (args.directory / "SOURCES.txt").write_text(sources + "\n")
    print(sources, flush=True)
    sets(args.directory, photos, args.count, random.Random(args.seed))
    mixed(args.directory, photos, args.largest, random.Random(args.seed))


if __name__ == "__main__":
    main()
