#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The manifests that we ship: every field is one of Kubernetes' API, they fit together, our program takes their commands, and what they
describe are VMs. `manifests_test.py KAGEMUSHA_K8S`
"""
import json
import re
import subprocess
import sys
import tomllib
import unittest
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from manifests import known_object  # noqa: E402

FOLDER = ROOT / "kubernetes/manifests"
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else None


def objects(name=None):
    """Of Kubernetes itself: nothing here knows which fields those of KubeVirt have."""
    return [thing for thing in every_object(name) if not thing["apiVersion"].startswith("kubevirt.io/")]


def every_object(name=None):
    files = [FOLDER / name] if name else sorted(FOLDER.glob("*.yaml"))
    return [thing for file in files for thing in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def pods():
    """The specification of each pod, wherever it stands."""
    for thing in objects():
        if thing["kind"] == "Pod":
            yield thing["spec"]
        elif thing["kind"] == "DaemonSet":
            yield thing["spec"]["template"]["spec"]


class Manifests(unittest.TestCase):
    def test_every_object_is_known(self):
        kinds = [known_object(thing) for thing in objects()]
        self.assertTrue({"DaemonSet", "Pod", "ClusterRole", "DeviceClass", "ResourceClaimTemplate"} <= set(kinds), kinds)

    def test_a_mistake_would_be_found(self):
        for wrong in ({"hostPid": True}, {"containers": {}}, {"containers": [{"image": 3}]}, {"restartPolicy": True}):
            with self.assertRaises(AssertionError):
                known_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": wrong})
        with self.assertRaises(AssertionError):
            known_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "A b"}})
        with self.assertRaises(AssertionError):
            known_object({"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": {"name": "a"}})

    def test_what_is_mounted_is_there(self):
        for pod in pods():
            volumes = {one["name"] for one in pod.get("volumes", [])}
            claims = {one["name"] for one in pod.get("resourceClaims", [])}
            for container in pod["containers"]:
                self.assertEqual({one["name"] for one in container.get("volumeMounts", [])}, volumes)
                self.assertEqual({one["name"] for one in container.get("resources", {}).get("claims", [])}, claims)

    def test_selectors_select_their_pods(self):
        for thing in objects():
            if thing["kind"] == "DaemonSet":
                self.assertEqual(thing["spec"]["selector"]["matchLabels"], thing["spec"]["template"]["metadata"]["labels"])
        labels = {thing["metadata"]["name"]: thing["metadata"].get("labels", {}) for thing in objects() if thing["kind"] == "Pod"}
        service = next(thing for thing in objects() if thing["kind"] == "Service")
        chosen = [name for name, has in labels.items() if service["spec"]["selector"].items() <= has.items()]
        self.assertEqual(chosen, ["web-standby"])
        self.assertEqual(service["metadata"]["name"], "web-standby")

    def test_the_account_of_the_driver_may_do_what_it_does(self):
        of_kind = {thing["kind"]: thing for thing in objects("dra.yaml") if thing["kind"] != "DaemonSet"}
        binding, daemon = of_kind["ClusterRoleBinding"], next(one for one in objects("dra.yaml") if one["kind"] == "DaemonSet")
        self.assertEqual(binding["subjects"][0]["name"], daemon["spec"]["template"]["spec"]["serviceAccountName"])
        self.assertEqual(binding["roleRef"]["name"], of_kind["ClusterRole"]["metadata"]["name"])
        may = {(resource, verb) for rule in of_kind["ClusterRole"]["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
        # api_server's methods and the paths in dra/*.cpp
        self.assertEqual(may, {("nodes", "get"), ("resourceclaims", "get"), ("resourceclaims", "list"), ("resourceclaims/status", "update"),
                               ("resourceclaims/driver", "associated-node:update"), *(("resourceslices", verb) for verb in
                                                                           ("get", "list", "create", "update", "delete"))})

    def test_names_are_those_of_the_program(self):
        slices = (ROOT / "kubernetes/core/slices.hpp").read_text(encoding="utf-8")
        driver = re.search(r'driver_name\[\] = "([^"]+)"', slices).group(1)
        capacity = re.search(r'share_capacity\[\] = "([^"]+)"', slices).group(1)
        resource = re.search(r'resource_name\[\] = "([^"]+)"', (ROOT / "kubernetes/core/gpu.hpp").read_text(encoding="utf-8")).group(1)
        classes = {thing["metadata"]["name"]: thing for thing in objects() if thing["kind"] == "DeviceClass"}
        source = (ROOT / "kubernetes/core/slices.cpp").read_text(encoding="utf-8")
        for one in classes.values():
            for name in re.findall(r'\.attributes\["[^"]+"\]\.(\w+)', one["spec"]["selectors"][0]["cel"]["expression"]):
                self.assertIn(f'{{"{name}", {{{{"string"', source, "an attribute that each device has")
        specs = [thing["spec"]["spec"] for thing in objects() if thing["kind"] == "ResourceClaimTemplate"]
        specs += [thing["spec"] for thing in objects() if thing["kind"] == "ResourceClaim"]
        self.assertEqual(len(specs), 3)
        for request in (one["exactly"] for spec in specs for one in spec["devices"]["requests"]):
            expression = classes[request["deviceClassName"]]["spec"]["selectors"][0]["cel"]["expression"]
            self.assertIn(f'device.driver == "{driver}"', expression)
            self.assertEqual(list(request["capacity"]["requests"]), [capacity])
        asked = [container["resources"]["limits"][resource] for pod in pods() for container in pod["containers"]
                 if resource in container.get("resources", {}).get("limits", {})]
        self.assertEqual(asked, ["50", "50", "25"])

    def test_the_pair_waits_for_its_standby(self):
        made = {(thing["kind"], thing["metadata"]["name"]): thing["spec"] for thing in objects("example-protected-vm-dra.yaml")}
        opaque = made["ResourceClaim", "web"]["devices"]["config"][0]["opaque"]
        source = (ROOT / "kubernetes/core/claims.cpp").read_text(encoding="utf-8")
        for key in ("apiVersion", "kind"):
            self.assertIn(f'"{opaque["parameters"][key]}"', source)
        self.assertIn(("ResourceClaim", opaque["parameters"]["standby"]), made)
        self.assertNotIn("config", made["ResourceClaim", "web-standby"]["devices"], "it would wait, too")
        for name in ("web", "web-standby"):
            self.assertEqual(made["Pod", name]["resourceClaims"], [{"name": "gpu", "resourceClaimName": name}])

    def test_kubevirts_vm_is_one_that_the_sidecar_takes(self):
        vmi, = every_object("example-kubevirt.yaml")
        devices = vmi["spec"]["domain"]["devices"]
        self.assertFalse(devices["autoattachGraphicsDevice"] or devices["autoattachMemBalloon"])
        self.assertEqual(vmi["spec"]["domain"]["resources"]["limits"]["kagemusha.io/gpu"], "100")
        self.assertEqual({one["disk"]["bus"] for one in devices["disks"]}, {"virtio"})
        sidecar, = json.loads(vmi["metadata"]["annotations"]["hooks.kubevirt.io/hookSidecars"])
        self.assertEqual(sidecar["command"][:2], ["kagemusha-k8s", "kubevirt-hook"])
        if PROGRAM:
            subprocess.run([PROGRAM, *sidecar["command"][1:], "--help"], check=True, stdout=subprocess.DEVNULL, timeout=60)

    def test_descriptions_are_toml(self):
        for thing in objects():
            if thing["kind"] == "ConfigMap":
                vm = tomllib.loads(thing["data"]["web.toml"])
                self.assertEqual(vm["name"], "web")
                self.assertNotIn("share", vm["gpu"], "the share comes from Kubernetes")
                self.assertIn(Path(vm["boot"]["job"]).name, thing["data"])

    @unittest.skipUnless(PROGRAM, "which program?")
    def test_the_program_takes_the_commands(self):
        seen = set()
        for pod in pods():
            for container in pod["containers"]:
                if container["command"][0] == "kagemusha-k8s":
                    seen.add(container["command"][1])
                    subprocess.run([PROGRAM, *container["command"][1:], "--help"], check=True, stdout=subprocess.DEVNULL, timeout=60)
        self.assertEqual(seen, {"device-plugin", "dra"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
