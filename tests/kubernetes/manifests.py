# SPDX-License-Identifier: GPL-2.0-or-later
"""
Whether an object is one of Kubernetes' API: each of its fields is known there and has the type that it has there (api_fields.json,
which api_fields.mjs makes from the models of @kubernetes/client-node), and what the API wants of some of them.
"""
import json
import re
from pathlib import Path

FIELDS = json.loads((Path(__file__).resolve().parent / "api_fields.json").read_text(encoding="utf-8"))
KINDS = {("v1", kind): f"V1{kind}" for kind in ("Namespace", "ServiceAccount", "Pod", "ConfigMap", "Service")}
KINDS |= {("apps/v1", kind): f"V1{kind}" for kind in ("DaemonSet", "Deployment")}
KINDS |= {("rbac.authorization.k8s.io/v1", kind): f"V1{kind}" for kind in ("ClusterRole", "ClusterRoleBinding")}
KINDS |= {("resource.k8s.io/v1", kind): f"V1{kind}" for kind in ("DeviceClass", "ResourceClaimTemplate", "ResourceSlice")}
KINDS["resource.k8s.io/v1", "ResourceClaim"] = "ResourceV1ResourceClaim"
PLAIN = {"string": str, "boolean": bool, "number": (int, float), "Date": str, "any": object}
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
CONDITION = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
QUANTITY = re.compile(r"(0|[1-9][0-9]*)([kMGTPE]|[KMGTPE]i)?")


def valid_value(value, kind, path):
    if kind.startswith("Array<"):
        assert isinstance(value, list), f"{path} is no list"
        for number, one in enumerate(value):
            valid_value(one, kind[6:-1], f"{path}[{number}]")
    elif kind.startswith("{ [key: string]: "):
        assert isinstance(value, dict), f"{path} is no map"
        for key, one in value.items():
            assert isinstance(key, str), f"{path}: a key is no text"
            valid_value(one, kind[17:-3], f"{path}.{key}")
    elif kind in PLAIN:
        good = isinstance(value, PLAIN[kind]) and (kind in ("boolean", "any") or not isinstance(value, bool))
        assert good, f"{path} is {value!r}, and no {kind}"
    elif kind == "IntOrString":
        assert isinstance(value, (int, str)), f"{path} is {value!r}"
    else:
        assert kind in FIELDS, f"{path}: nothing is known of {kind}"
        assert isinstance(value, dict), f"{path} is no object"
        for key, one in value.items():
            assert key in FIELDS[kind], f"{path}: {kind} has no field {key}"
            valid_value(one, FIELDS[kind][key], f"{path}.{key}")


def known_object(thing):
    """Raises what is wrong with it. Its kind."""
    kind = KINDS.get((thing.get("apiVersion"), thing.get("kind")))
    assert kind, f"no such object: {thing.get('apiVersion')} {thing.get('kind')}"
    valid_value(thing, kind, thing["kind"])
    assert DNS_NAME.fullmatch(thing["metadata"]["name"]) and len(thing["metadata"]["name"]) <= 253, thing["metadata"]
    if thing["kind"] == "ResourceSlice":
        good_slice(thing["spec"])
    return thing["kind"]


def good_quantity(text, least=0):
    found = QUANTITY.fullmatch(text)
    assert found, f"no quantity: {text}"
    assert found.group(2) or int(text) >= least, text
    return text


def good_slice(spec):
    """What the API server refuses in a ResourceSlice, of what can be wrong in ours."""
    assert {"driver", "pool", "nodeName"} <= set(spec), "a slice of a node"
    assert DNS_NAME.fullmatch(spec["driver"]) and len(spec["driver"]) <= 63
    assert set(spec["pool"]) == {"name", "generation", "resourceSliceCount"} and spec["pool"]["resourceSliceCount"] >= 1
    assert ("devices" in spec) != ("sharedCounters" in spec), "one of the two, since 1.35"
    sets = spec.get("sharedCounters", [])
    assert len(sets) <= 8 and len({one["name"] for one in sets}) == len(sets)
    for one in sets:
        assert DNS_LABEL.fullmatch(one["name"]) and 1 <= len(one["counters"]) <= 32
        for counter in one["counters"].values():
            good_quantity(counter["value"])
    devices = spec.get("devices", [])
    assert len(devices) <= (64 if any("consumesCounters" in one for one in devices) else 128)
    assert len({one["name"] for one in devices}) == len(devices)
    for device in devices:
        good_device(device)


def good_device(device):
    assert DNS_LABEL.fullmatch(device["name"]), device["name"]
    assert len(device.get("attributes", {})) + len(device.get("capacity", {})) <= 32
    for name, value in device.get("attributes", {}).items():
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name), name
        assert len(value) == 1, "an attribute has one value"
        assert len(value.get("string", "")) <= 64, value
    for capacity in device.get("capacity", {}).values():
        whole = int(good_quantity(capacity["value"]))
        if "requestPolicy" in capacity:
            assert device.get("allowMultipleAllocations"), "a policy is for what is allocated several times"
            policy, span = capacity["requestPolicy"], capacity["requestPolicy"]["validRange"]
            least, most, step = int(span["min"]), int(span["max"]), int(span["step"])
            assert 0 <= least <= int(policy["default"]) <= most <= whole, policy
            assert (int(policy["default"]) - least) % step == 0 and (most - least) % step == 0, policy
    for name in ("bindingConditions", "bindingFailureConditions"):
        assert len(device.get(name, [])) <= 4 and all(CONDITION.fullmatch(one) for one in device.get(name, [])), device
    assert ("bindingConditions" in device) == ("bindingFailureConditions" in device), device
    for consumed in device.get("consumesCounters", []):
        assert DNS_LABEL.fullmatch(consumed["counterSet"]) and consumed["counters"]
        for counter in consumed["counters"].values():
            good_quantity(counter["value"], 1)


def good_device_status(entry):
    """What the API server refuses in an entry of a claim's status.devices."""
    assert {"driver", "pool", "device"} <= set(entry), entry
    conditions = entry.get("conditions", [])
    assert len(conditions) <= 8 and len({one["type"] for one in conditions}) == len(conditions)
    for one in conditions:
        assert {"type", "status", "reason", "message", "lastTransitionTime"} <= set(one), one
        assert CONDITION.fullmatch(one["type"]) and one["status"] in ("True", "False", "Unknown"), one
        assert REASON.fullmatch(one["reason"]) and len(one["reason"]) <= 1024 and len(one["message"]) <= 32768, one
        assert TIME.fullmatch(one["lastTransitionTime"]), one
