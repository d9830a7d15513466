"""How large is the image of deploy/Containerfile? Its root filesystem is made here, without a container engine.

    python tools/image_size.py FOLDER [--json FILE]

The steps of its first stage run with this Python, which must be that of the image, and write into FOLDER. Debian's
packages below them are those of distroless's python3-debian12, downloaded by apt-get on Debian 12 and unpacked.
As root, a vector is computed in the result.
"""  # noqa: E501

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
BASE = """
base-files ca-certificates libbz2-1.0 libc6 libcom-err2 libcrypt1 libdb5.3 libexpat1 libffi8 libgcc-s1
libgomp1 libgssapi-krb5-2 libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 liblzma5 libncursesw6 libnsl2
libpython3.11-minimal libpython3.11-stdlib libreadline8 libsqlite3-0 libssl3 libstdc++6 libtinfo6 libtirpc3
libuuid1 media-types netbase python3.11-minimal tzdata zlib1g
"""
ASK = """
import hccs.serving.app, hccs
encoder = hccs.Encoder.load("all-MiniLM-L6-v2")
encoder.encode("a text")
print(encoder.fingerprint)
"""


def bytes_in(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    content = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    if f"python:{platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}-" not in content:
        raise SystemExit("deploy/Containerfile takes another Python than this one")
    folder = options.folder.resolve()
    root, packages = folder / "root", folder / "packages"
    packages.mkdir(parents=True)
    subprocess.run(["apt-get", "download", "-qq", *BASE.split()], cwd=packages, check=True)
    for package in packages.iterdir():
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    found: dict[str, Any] = {"debian": bytes_in(root)}
    places = {"/source": str(ROOT), "/wheels": str(folder / "wheels"), "/app": str(root / "app")}
    for step in re.findall(r"^RUN (?!apt-get)(.*)$", content, re.M):
        step = re.sub(r"/(source|wheels|app)\b", lambda place: places[place[0]], step)
        subprocess.run(step.replace("pip ", f"{sys.executable} -m pip "), shell=True, check=True)
    found |= {"packages": bytes_in(root / "app"), "all": bytes_in(root)}
    print(", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in found.items()))
    if os.geteuid() == 0:
        command = ["chroot", str(root), "/usr/bin/python3.11", "-c", ASK]
        environment = {"PYTHONPATH": "/app", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/sbin:/usr/bin"}
        found["fingerprint"] = subprocess.check_output(command, env=environment, text=True).strip()
        print("it runs:", found["fingerprint"])
    if options.json:
        from provenance import write_json

        write_json(options.json, found)


if __name__ == "__main__":
    main()
