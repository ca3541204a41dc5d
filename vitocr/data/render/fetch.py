"""More fonts: free families, through the user's own npm and whatever registry it is set up for.

`@fontsource/<family>` packs a family of Google Fonts as woff2 files, one for each script, weight and slant;
FreeType reads them as they are. Of each family the Latin files of up to four faces are kept (regular, bold,
the heaviest, and an italic), or the Korean ones for the families listed under [korean].

A family's folder appears under its final name only when complete, so an interrupted fetch goes on where it stopped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from vitocr.errors import UserError

TOGETHER = 12  # families in one call of npm: one at a time is slow, all at once says nothing for minutes
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "OFL.txt")
FAMILY_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@cache
def families_by_look() -> dict[str, tuple[str, ...]]:
    """The curated list: {"sans": ("roboto", ...), "condensed": ..., "korean": ...}."""
    text = resources.files(__package__).joinpath("assets/families.txt").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    look = ""
    for line in text.splitlines():
        if line.startswith("["):
            look = line.strip("[] ")
        elif not line.startswith("#"):
            found.setdefault(look, []).extend(line.split())
    return {name: tuple(families) for name, families in found.items()}


def fetch_fonts(
    dest: Path, families: Sequence[str] | None = None, *, say: Callable[[str], object] = print
) -> list[Path]:
    """Make sure each family has a folder of font files below `dest`; the folders, in the order asked for.

    families: names as on fontsource ("open-sans") or groups of the curated list ("korean", "script"); when None, all
    of the list but the Korean ones. A family npm does not have is named and left out.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            "Fetching fonts needs npm (it comes with Node.js), which is not installed. Install it, or point "
            "render.fonts at folders of .ttf, .otf or .woff2 files you have."
        )
    dest.mkdir(parents=True, exist_ok=True)
    wanted = _expand(families)
    missing = [family for family in wanted if not (dest / family).is_dir()]
    say(f"Fonts: {len(wanted) - len(missing)} of {len(wanted)} families are in {dest}")
    failed: list[str] = []
    for start in range(0, len(missing), TOGETHER):
        group = missing[start : start + TOGETHER]
        failed += _fetch_group(npm, group, dest)
        say(f"  {start + len(group)} of {len(missing)} fetched")
    if failed:
        say(f"  npm could not deliver {len(failed)}: {', '.join(failed)}")
    if missing and len(failed) == len(missing) == len(wanted):
        raise UserError(
            f"npm delivered none of {len(wanted)} font families. Is the network up? Try: npm view @fontsource/lato"
        )
    return [dest / family for family in wanted if (dest / family).is_dir()]


def _expand(families: Sequence[str] | None) -> list[str]:
    looks = families_by_look()
    if families is None:
        return [family for look, names in looks.items() if look != "korean" for family in names]
    names: list[str] = []
    for family in families:
        if family in looks:
            names += looks[family]
        elif FAMILY_NAME.fullmatch(family):
            names.append(family)
        else:
            raise UserError(
                f"{family!r} is no font family: write it as fontsource does, for example open-sans, "
                f"or name a group: {', '.join(looks)}."
            )
    return list(dict.fromkeys(names))


def _fetch_group(npm: str, families: Sequence[str], dest: Path) -> list[str]:
    """Fetch these, together if that works, else one by one; the names of those that failed."""
    with tempfile.TemporaryDirectory(dir=dest, prefix=".fetch-") as scratch:
        command = [npm, "pack", "--ignore-scripts", "--loglevel=error", *(f"@fontsource/{name}" for name in families)]
        code = subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True).returncode
        if code and len(families) > 1:
            return [failed for family in families for failed in _fetch_group(npm, [family], dest)]
        if code:
            return list(families)
        failed = []
        for family in families:
            archives = [
                path
                for path in Path(scratch).glob(f"fontsource-{family}-*.tgz")
                if path.name[len(f"fontsource-{family}-")].isdigit()
            ]
            try:
                unpack_family(archives[0], family, dest)
            except (OSError, tarfile.TarError, KeyError, ValueError, IndexError):
                failed.append(family)
        return failed


def unpack_family(archive: Path, family: str, dest: Path) -> None:
    """The chosen faces and the licence out of a package of fontsource, into dest/family."""
    script = "korean" if family in families_by_look()["korean"] else "latin"
    folder = Path(tempfile.mkdtemp(dir=dest, prefix=".unpack-"))
    try:
        with tarfile.open(archive) as tar:
            names = tar.getnames()
            about = json.loads(_read(tar, "package/metadata.json"))
            for weight, style in _choose_faces(about["weights"], about["styles"]):
                # Korean text is mixed with Latin: the same face in both scripts, side by side.
                for part in dict.fromkeys((script, "latin")):
                    member = f"package/files/{family}-{part}-{weight}-{style}.woff2"
                    if member in names:
                        (folder / Path(member).name).write_bytes(_read(tar, member))
            for licence in LICENCE_FILES:
                if f"package/{licence}" in names:
                    (folder / licence).write_bytes(_read(tar, f"package/{licence}"))
        if not any(folder.glob("*.woff2")):
            raise ValueError(f"{archive.name} holds no {script} face")
        folder.chmod(0o755)
        folder.rename(dest / family)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _choose_faces(weights: Iterable[int], styles: Iterable[str]) -> list[tuple[int, str]]:
    have = sorted(int(weight) for weight in weights)
    regular = min(have, key=lambda weight: abs(weight - 400))
    bold = min(have, key=lambda weight: abs(weight - 700))
    faces = [(weight, "normal") for weight in dict.fromkeys((regular, bold, have[-1]))]
    return [*faces, (regular, "italic")] if "italic" in styles else faces


def _read(tar: tarfile.TarFile, member: str) -> bytes:
    file = tar.extractfile(member)
    if file is None:
        raise KeyError(member)
    return file.read()
