# SPDX-License-Identifier: GPL-2.0-or-later
"""
Images of containers without a registry: `archive(path, name)` writes an OCI archive whose only layer is Debian's busybox-static.
"""
import hashlib
import io
import json
import tarfile

BUSYBOX = "/bin/busybox"
APPLETS = ("sh", "sleep", "cat", "ls", "env", "stat", "kill", "true", "touch", "mount")


def layer():
    """Uncompressed, the same bytes each time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "proc", "sys", "dev", "tmp", "run", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        with open(BUSYBOX, "rb") as program:
            content = program.read()
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return out.getvalue()


def archive(path, name, command):
    with tarfile.open(path, "w") as tar:
        def add(file_name, content):
            entry = tarfile.TarInfo(file_name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))

        def blob(content, kind):
            digest = hashlib.sha256(content).hexdigest()
            add(f"blobs/sha256/{digest}", content)
            return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

        files = blob(layer(), "layer.v1.tar")
        config = blob(json.dumps({"architecture": "amd64", "os": "linux", "config": {"Cmd": command, "Env": ["PATH=/bin"]},
                                  "rootfs": {"type": "layers", "diff_ids": [files["digest"]]}}).encode(), "config.v1+json")
        manifest = blob(json.dumps({"schemaVersion": 2, "config": config, "layers": [files]}).encode(), "manifest.v1+json")
        manifest["annotations"] = {"io.containerd.image.name": name}
        add("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
