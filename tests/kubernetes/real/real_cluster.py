# SPDX-License-Identifier: GPL-2.0-or-later
"""
A cluster of one node in a root that make-root made (see enter): etcd, the API server, the controller
manager, the scheduler, containerd and a kubelet, each the real program, with certificates of one authority, and RBAC as a cluster has it. Nothing of it is ours.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from images import archive

sys.path.append(str(Path(__file__).resolve().parent.parent))
from waiting import wait_for  # noqa: E402

ADDRESS, NODE = "10.77.0.1", "node1"
SERVER = f"https://{ADDRESS}:6443"
LOGS, KEYS = Path("/var/log/real"), Path("/run/keys")
PAUSE, IMAGE = "localhost/pause:1", "localhost/busybox:1"
WAIT_SECONDS = int(os.environ.get("KAGE_WAIT_SECONDS", "900"))
# Who there is: name and groups, as the API server knows them.
CLIENTS = {"admin": ("admin", "system:masters"), "node": (f"system:node:{NODE}", "system:nodes"),
           "scheduler": ("system:kube-scheduler", ""), "controllers": ("system:kube-controller-manager", "")}
CONTAINERD = f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""
NETWORK = {"cniVersion": "0.3.1", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": True,
           "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}
KUBELET = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs", "failSwapOn": False,
           "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}, "x509": {"clientCAFile": f"{KEYS}/ca.crt"}},
           "authorization": {"mode": "AlwaysAllow"}, "tlsCertFile": f"{KEYS}/server.crt", "tlsPrivateKeyFile": f"{KEYS}/server.key",
           # A machine that has little left is not the subject.
           "evictionHard": {"memory.available": "20Mi"}, "imageGCHighThresholdPercent": 100, "makeIPTablesUtilChains": False,
           "resolvConf": ""}


def wait(condition, what, seconds=WAIT_SECONDS):
    """Its first true value."""
    return wait_for(condition, what, seconds, every=0.5)


def must(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def make_keys():
    """An authority, the server's certificate, the clients' ones with their kubeconfigs, a key for tokens of accounts."""
    KEYS.mkdir(mode=0o700)
    quiet = {"cwd": KEYS, "stderr": subprocess.DEVNULL}
    must("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "9", "-subj", "/CN=test", **quiet)

    def certificate(name, subject, extension):
        must("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject, **quiet)
        (KEYS / f"{name}.ext").write_text(extension, encoding="ascii")
        must("openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "9",
             "-extfile", f"{name}.ext", "-out", f"{name}.crt", **quiet)

    certificate("server", "/CN=server", f"subjectAltName=IP:{ADDRESS},IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:{NODE}\n")
    for name, (who, group) in CLIENTS.items():
        certificate(name, (f"/O={group}" if group else "") + f"/CN={who}", "extendedKeyUsage=clientAuth\n")
        (KEYS / f"{name}.conf").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": SERVER, "certificate-authority": f"{KEYS}/ca.crt"}}],
            "users": [{"name": "it", "user": {"client-certificate": f"{KEYS}/{name}.crt", "client-key": f"{KEYS}/{name}.key"}}]}), encoding="ascii")


class Cluster:
    def __init__(self):
        for folder in ("/var/lib/kubelet", "/var/lib/containerd", LOGS, "/etc/cni/net.d"):
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True)
        self.processes = {}
        make_keys()
        Path("/etc/cni/net.d/10-pods.conf").write_text(json.dumps(NETWORK), encoding="ascii")
        Path("/run/containerd.toml").write_text(CONTAINERD, encoding="ascii")
        Path("/run/kubelet.json").write_text(json.dumps(KUBELET), encoding="ascii")

    def start(self, name, *words, environment=None):
        with open(LOGS / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                    env={**os.environ, **(environment or {})})

    def stop(self, name, how=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(how)
        return process.wait(120)

    def said(self, name):
        return (LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def alive(self):
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended with {process.returncode}:\n{self.said(name)[-3000:]}"
        return True

    def start_control_plane(self):
        self.start("etcd", "etcd", "--data-dir", "/run/etcd", "--listen-client-urls", "http://127.0.0.1:2379",
                   "--advertise-client-urls", "http://127.0.0.1:2379", "--heartbeat-interval", "1000", "--election-timeout", "10000")
        self.start("kube-apiserver", "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={ADDRESS}",
                   "--authorization-mode=Node,RBAC", f"--client-ca-file={KEYS}/ca.crt", f"--tls-cert-file={KEYS}/server.crt",
                   f"--tls-private-key-file={KEYS}/server.key", f"--service-account-key-file={KEYS}/server.key",
                   f"--service-account-signing-key-file={KEYS}/server.key", "--service-account-issuer=https://test", "--service-cluster-ip-range=10.96.0.0/24",
                   f"--kubelet-client-certificate={KEYS}/admin.crt", f"--kubelet-client-key={KEYS}/admin.key",
                   f"--kubelet-certificate-authority={KEYS}/ca.crt", "--kubelet-preferred-address-types=InternalIP", "--enable-admission-plugins=NodeRestriction")
        wait(lambda: self.alive() and self.kubectl("get", "--raw", "/readyz", check=False) == "ok", "the API server")
        # It makes the accounts of pods, and takes a node's taint away once the node is ready.
        self.start("kube-controller-manager", "kube-controller-manager", f"--kubeconfig={KEYS}/controllers.conf", "--leader-elect=false",
                   f"--service-account-private-key-file={KEYS}/server.key", f"--root-ca-file={KEYS}/ca.crt", "--use-service-account-credentials",
                   "--node-monitor-grace-period=600s")  # a machine with much else to do is not dead
        self.start("kube-scheduler", "kube-scheduler", f"--kubeconfig={KEYS}/scheduler.conf", "--leader-elect=false")

    def start_containerd(self):
        self.start("containerd", "containerd", "--config", "/run/containerd.toml")
        wait(lambda: self.alive() and subprocess.run(["ctr", "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0, "containerd")
        forever = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
        for name in (PAUSE, IMAGE):
            archive("/run/image.tar", name, ["/bin/sh", "-c", forever])
            must("ctr", "-n", "k8s.io", "images", "import", "/run/image.tar")

    def start_kubelet(self):
        self.start("kubelet", "kubelet", "--container-runtime=remote", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
                   f"--kubeconfig={KEYS}/node.conf", "--config=/run/kubelet.json", f"--hostname-override={NODE}", f"--node-ip={ADDRESS}")

    def kubectl(self, *words, text=None, check=True):
        done = subprocess.run(["kubectl", f"--kubeconfig={KEYS}/admin.conf", *map(str, words)], input=text, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        assert not check or done.returncode == 0, f"kubectl {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout if done.returncode == 0 or check else ""

    def get(self, *words):
        """None: there is no such object."""
        said = self.kubectl("get", *words, "-o", "json", check=False)
        return json.loads(said) if said else None

    def node(self):
        self.alive()
        return self.get("node", NODE) or {}

    def node_ready(self):
        return any(one["type"] == "Ready" and one["status"] == "True" for one in self.node().get("status", {}).get("conditions", []))

    def resource(self, which, name):
        """`which`: capacity or allocatable."""
        return int(self.node().get("status", {}).get(which, {}).get(name, "-1"))

    def end(self):
        for name in reversed(list(self.processes)):
            self.processes[name].kill()
            self.processes[name].wait()
