#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs one layer as an image in the form of `docker save`, which containerd and docker load."""
import argparse
import datetime
import hashlib
import io
import json
import os
import tarfile


def digest(stream):
    sha256 = hashlib.sha256()
    while block := stream.read(1 << 20):
        sha256.update(block)
    return sha256.hexdigest()


def add(archive, name, stream, size, created):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, created
    archive.addfile(entry, stream)


def pack(layer_path, name, entrypoint, user, created, out):
    with open(layer_path, "rb") as layer:
        layer_digest = digest(layer)
    config = json.dumps({
        "architecture": "amd64",
        "os": "linux",
        "created": datetime.datetime.fromtimestamp(created, datetime.timezone.utc).isoformat(),
        "config": {"Entrypoint": [entrypoint], "User": user, "Env": ["PATH=/opt/cuslice/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }, sort_keys=True).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    layer_name = f"{layer_digest}/layer.tar"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).encode()
    # Under another name until it is whole.
    with tarfile.open(out + ".part", "w", format=tarfile.GNU_FORMAT) as archive, open(layer_path, "rb") as layer:
        add(archive, layer_name, layer, os.path.getsize(layer_path), created)
        add(archive, config_name, io.BytesIO(config), len(config), created)
        add(archive, "manifest.json", io.BytesIO(manifest), len(manifest), created)
    os.rename(out + ".part", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", required=True, help="the root file system, as a tar")
    parser.add_argument("--name", required=True, help="name and tag of the image")
    parser.add_argument("--entrypoint", required=True)
    parser.add_argument("--user", required=True, help="uid that the image starts as")
    parser.add_argument("--created", required=True, type=int, help="seconds since 1970")
    parser.add_argument("out")
    options = parser.parse_args()
    pack(options.layer, options.name, options.entrypoint, options.user, options.created, options.out)


if __name__ == "__main__":
    main()
