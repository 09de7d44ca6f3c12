# SPDX-License-Identifier: GPL-2.0-or-later
"""
What the Container Device Interface asks of a specification, as far as ours has it: every key is known, every name and path is one.
Written from SPEC.md of the interface, version 0.5.0.
"""
import re

VERSIONS = {"0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0"}
VENDOR = r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]"
CLASS = r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]"
DEVICE = r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"


def only(thing, needed, optional=()):
    assert isinstance(thing, dict), thing
    assert set(needed) <= set(thing) <= set(needed) | set(optional), f"keys {sorted(thing)}: needed {needed}, optional {optional}"


def absolute(path):
    assert isinstance(path, str) and path.startswith("/") and "\0" not in path and ".." not in path.split("/"), path


def valid_edits(edits):
    only(edits, (), ("env", "deviceNodes", "mounts", "hooks"))
    assert edits, "edits without any are invalid"
    for pair in edits.get("env", []):
        assert re.fullmatch(r"[^=\0]+=[^\0]*", pair), pair
    for node in edits.get("deviceNodes", []):
        only(node, ("path",), ("hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"))
        absolute(node["path"])
        assert re.fullmatch(r"[rwm]{1,3}", node.get("permissions", "rwm")), node
        assert node.get("type", "c") in ("b", "c", "u", "p"), node
    for mount in edits.get("mounts", []):
        only(mount, ("hostPath", "containerPath"), ("options", "type"))
        absolute(mount["hostPath"])
        absolute(mount["containerPath"])
        assert all(isinstance(option, str) and option for option in mount.get("options", [])), mount


def devices_of(spec):
    """Raises what is wrong. The names of its devices, as a container is given them."""
    only(spec, ("cdiVersion", "kind", "devices"), ("containerEdits", "annotations"))
    assert spec["cdiVersion"] in VERSIONS, spec["cdiVersion"]
    assert re.fullmatch(f"{VENDOR}/{CLASS}", spec["kind"]), spec["kind"]
    if "containerEdits" in spec:
        valid_edits(spec["containerEdits"])
    assert spec["devices"], "a specification has a device"
    names = []
    for device in spec["devices"]:
        only(device, ("name", "containerEdits"), ("annotations",))
        assert re.fullmatch(DEVICE, device["name"]), device["name"]
        valid_edits(device["containerEdits"])
        names.append(f"{spec['kind']}={device['name']}")
    assert len(set(names)) == len(names), "a device's name comes twice"
    return names
