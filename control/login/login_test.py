#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
People of elsewhere log in at the portal: by PAM (pam-wrapper's modules, nothing of this machine's /etc/pam.d) and by OpenID
Connect (Debian's glewlwyd, an unmodified provider, on loopback). $KAGE_TOOL: the control tool.
"""
import glob
import http.client
import json
import os
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "daemon"), str(HERE.parent / "portal")]
from daemon_test import SECONDS, Daemon, wait  # noqa: E402
from portal_test import TLS, Portal, refused  # noqa: E402
from waiting import free_port  # noqa: E402

TABLES = "/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3"
WRAPPERS = glob.glob("/usr/lib/*/libpam_wrapper.so")
PASSWORD = "password"  # of the administrator that glewlwyd's tables begin with


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class Glewlwyd:
    """The provider: its tables are filled as its administrator would fill them. One person, in the groups gpu and staff."""

    def __init__(self, folder, redirect, secret=PASSWORD):
        self.folder, self.port, self.process = folder, free_port(), None
        folder.mkdir()
        self.issuer = f"https://localhost:{self.port}/api/oidc"
        self.ca = str(folder / "cert.pem")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost", "-keyout", str(folder / "key.pem"), "-out", self.ca)
        self.fill(redirect)
        modules = "".join(f'{one}_module_path="/usr/lib/glewlwyd/{path}"\n' for one, path in (
            ("user", "user"), ("user_middleware", "user_middleware"), ("client", "client"), ("user_auth_scheme", "scheme"),
            ("plugin", "plugin")))
        (folder / "conf").write_text(
            f'port={self.port}\nbind_address="127.0.0.1"\nexternal_url="https://localhost:{self.port}"\nlogin_url="login.html"\n'
            f'api_prefix="api"\nlog_mode="console"\nlog_level="INFO"\ncookie_domain="localhost"\ncookie_secure=1\n{modules}'
            f'admin_scope="g_admin"\nprofile_scope="g_profile"\nuse_secure_connection=true\n'
            f'secure_connection_key_file="{folder}/key.pem"\nsecure_connection_pem_file="{self.ca}"\nhash_algorithm="SHA512"\n'
            f'database = {{ type = "sqlite3"\n path = "{folder}/db" }};\n', encoding="utf-8")

    def new_key(self, kind):
        """Its next start signs with it."""
        private, public = self.folder / "sign.pem", self.folder / "public.pem"
        openssl("genpkey", "-algorithm", *(("RSA", "-pkeyopt", "rsa_keygen_bits:2048") if kind == "rsa" else
                                           ("EC", "-pkeyopt", "ec_paramgen_curve:P-256")), "-out", str(private))
        openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
        return {"jwt-type": kind, "jwt-key-size": "256", "key": private.read_text(encoding="ascii"),
                "cert": public.read_text(encoding="ascii")}

    def fill(self, redirect):
        db = sqlite3.connect(self.folder / "db")
        db.executescript(Path(TABLES).read_text(encoding="utf-8"))
        claims = [{"name": name, "user-property": of, "type": "string", "mandatory": True, "on-demand": False, "scope": []}
                  for name, of in (("groups", "groups"), ("preferred_username", "username"))]
        flows = {f"auth-type-{one}-enabled": one == "code" for one in ("code", "token", "implicit", "password", "client", "refresh", "none",
                                                                      "device")}
        plugin = {"iss": self.issuer, "access-token-duration": 3600, "refresh-token-duration": 3600, "code-duration": 600,
                  "refresh-token-rolling": True, "allow-non-oidc": False, "scope": [], "additional-parameters": [], "jwks-show": True,
                  "pkce-allowed": True, "pkce-method-plain-allowed": False, "pkce-required": True, "claims": claims,
                  "subject-type": "public", "name-claim": "no", "email-claim": "no", "scope-claim": "no", "oauth-as-iss-id": True,
                  "session-management-allowed": False, **flows, **self.new_key("ecdsa")}
        db.execute("INSERT INTO g_plugin_module_instance (gpmi_module, gpmi_name, gpmi_parameters) VALUES ('oidc', 'oidc', ?)",
                   (json.dumps(plugin),))
        users = json.loads(db.execute("SELECT gumi_parameters FROM g_user_module_instance").fetchone()[0])
        users["data-format"]["groups"] = {"multiple": True, "read": True, "write": True, "profile-read": True, "profile-write": False}
        db.execute("UPDATE g_user_module_instance SET gumi_parameters = ?", (json.dumps(users),))
        person, secret = db.execute("SELECT gu_id, guw_password FROM g_user_password").fetchone()
        for group in ("gpu", "staff"):
            db.execute("INSERT INTO g_user_property (gu_id, gup_name, gup_value) VALUES (?, 'groups', ?)", (person, group))
        scope = db.execute("INSERT INTO g_user_scope (gus_name) VALUES ('openid')").lastrowid
        db.execute("INSERT INTO g_user_scope_user (gu_id, gus_id) VALUES (?, ?)", (person, scope))
        # The client's secret is the same word as the person's password: only its hash is at hand.
        client = db.execute("INSERT INTO g_client (gc_client_id, gc_name, gc_confidential, gc_password) VALUES ('kagemusha', 'K', 1, ?)",
                            (secret,)).lastrowid
        for name, value in (("redirect_uri", redirect), ("authorization_type", "code"), ("token_endpoint_auth_method", "client_secret_basic")):
            db.execute("INSERT INTO g_client_property (gc_id, gcp_name, gcp_value) VALUES (?, ?, ?)", (client, name, value))
        scope = db.execute("INSERT INTO g_client_scope (gcs_name) VALUES ('openid')").lastrowid
        db.execute("INSERT INTO g_client_scope_client (gc_id, gcs_id) VALUES (?, ?)", (client, scope))
        db.execute("INSERT INTO g_client_user_scope (gs_id, gcus_username, gcus_client_id) VALUES "
                   "((SELECT gs_id FROM g_scope WHERE gs_name = 'openid'), 'admin', 'kagemusha')")
        db.commit()
        db.close()

    def change(self, parameters=None, groups=None):
        """Between stop() and start()."""
        db = sqlite3.connect(self.folder / "db")
        if parameters:
            old = json.loads(db.execute("SELECT gpmi_parameters FROM g_plugin_module_instance").fetchone()[0])
            db.execute("UPDATE g_plugin_module_instance SET gpmi_parameters = ?", (json.dumps({**old, **parameters}),))
        if groups is not None:
            person = db.execute("SELECT gu_id FROM g_user").fetchone()[0]
            db.execute("DELETE FROM g_user_property WHERE gup_name = 'groups'")
            for group in groups:
                db.execute("INSERT INTO g_user_property (gu_id, gup_name, gup_value) VALUES (?, 'groups', ?)", (person, group))
        db.commit()
        db.close()

    def ask(self, method, target, body=None, headers=None):
        end = http.client.HTTPSConnection("localhost", self.port, timeout=SECONDS, context=TLS)
        try:
            end.request(method, target, body, headers or {})
            got = end.getresponse()
            got.read()
            return got
        finally:
            end.close()

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(["glewlwyd", f"--config-file={self.folder}/conf"], stdout=log, stderr=log)

        def answers():
            assert self.process.poll() is None, (self.folder / "log").read_text(encoding="utf-8")[-2000:]
            try:
                return self.ask("GET", "/api/oidc/.well-known/openid-configuration").status == 200
            except OSError:
                return False
        wait(answers, "glewlwyd answers")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log_in(self):
        """The person's cookie."""
        got = self.ask("POST", "/api/auth", json.dumps({"username": "admin", "password": PASSWORD}), {"Content-Type": "application/json"})
        assert got.status == 200, got.status
        return got.headers["Set-Cookie"].split(";")[0]

    def come_back(self, location):
        """What the person's browser does there: where it is sent back to."""
        assert location.startswith(self.issuer + "/auth?"), location
        target = location[len(f"https://localhost:{self.port}"):] + "&g_continue"  # the person has confirmed who it is
        return self.ask("GET", target, headers={"Cookie": self.log_in()}).headers["Location"]


def cookies_of(answer):
    return dict(one.split(";")[0].split("=", 1) for one in answer.headers.get_all("Set-Cookie") or [])


def leave(portal):
    left = portal.ask("GET", "/v1/login/oidc")
    assert left.status == 303, (left.status, left.body)
    cookie = left.headers["Set-Cookie"]
    assert all(word in cookie for word in ("__Host-kagemusha-login=", "; Secure", "; HttpOnly", "; SameSite=Lax")), cookie
    return left.headers["Location"], {"Cookie": cookie.split(";")[0]}


def arrive(portal, back, cookie):
    assert back.startswith(portal.origin + "/v1/login/oidc/callback?"), back
    return portal.ask("GET", back[len(portal.origin):], headers=cookie)


def check_pam(portal):
    """users of the host get the role of their groups; others, and passwords that do not fit, do not get in; nor does a name of
    the portal's with the host's password"""
    assert portal.ask("GET", "/v1/login").json()["pam"] is True
    operator = portal.log_in({"user": "daemon", "password": "daemon-password"})
    assert portal.ask("GET", "/v1/session", headers=operator).json() == {
        "user": "pam:daemon", "role": "operator", "csrf": operator["X-CSRF-Token"]}
    refused(portal.ask("POST", "/v1/session", {"user": "daemon", "password": "daemon-passwore"}), 401, "do not fit")
    refused(portal.ask("POST", "/v1/session", {"user": "daemon", "password": ""}), 401, "do not fit")
    refused(portal.ask("POST", "/v1/session", {"user": "daemon", "password": "daemon-password\0"}), 401, "do not fit")
    refused(portal.ask("POST", "/v1/session", {"user": "nobody-there", "password": "daemon-password"}), 401, "do not fit")
    refused(portal.ask("POST", "/v1/session", {"user": "../daemon", "password": "daemon-password"}), 401, "do not fit")


def check_pam_accounts(portal):
    """who is in no group, and whose account does not count for this service, is told so; only after the right password"""
    refused(portal.ask("POST", "/v1/session", {"user": "games", "password": "games-password"}), 403, "none of the groups")
    refused(portal.ask("POST", "/v1/session", {"user": "games", "password": "wrong"}), 401, "do not fit")
    refused(portal.ask("POST", "/v1/session", {"user": "bin", "password": "bin-password"}), 403, "does not let this account in")
    refused(portal.ask("POST", "/v1/session", {"user": "bin", "password": "wrong"}), 401, "do not fit")
    assert portal.kage("portal", "add-user", "daemon", "--role", "viewer", text="own-password\n").returncode == 0
    refused(portal.ask("POST", "/v1/session", {"user": "daemon", "password": "daemon-password"}), 401, "do not fit")
    own = portal.log_in({"user": "daemon", "password": "own-password"})
    assert portal.ask("GET", "/v1/session", headers=own).json()["user"] == "daemon"


def check_slow_pam(portal):
    """a module that hangs is ended; others are answered meanwhile, and the log says what was"""
    order = []

    def slow():
        order.append(refused(portal.ask("POST", "/v1/session", {"user": "sync", "password": "sync-password"}), 503, "gives no answer"))
    hangs = threading.Thread(target=slow)
    hangs.start()
    wait(lambda: (portal.daemon.directory / "hangs").exists(), "the module hangs")
    order.append(refused(portal.ask("GET", "/v1/clusters"), 401, "log in"))
    hangs.join(SECONDS)
    assert [one.status for one in order] == [401, 503], order
    assert "no answer within 10 s" in portal.daemon.said()


def check_oidc(portal, provider):
    """a browser goes to glewlwyd and comes back with a session of the person's role, once; the audit log has it without its code"""
    assert portal.ask("GET", "/v1/login").json()["oidc"] == "Our people"
    location, cookie = leave(portal)
    asked = dict(urllib.parse.parse_qsl(location.split("?", 1)[1]))
    assert asked["code_challenge_method"] == "S256" and asked["scope"] == "openid" and len(asked["nonce"]) == 64, asked
    back = provider.come_back(location)
    came = arrive(portal, back, cookie)
    assert came.status == 303 and came.headers["Location"] == "/", (came.status, came.headers, portal.daemon.said()[-1000:])
    session = {"Cookie": "__Host-kagemusha=" + cookies_of(came)["__Host-kagemusha"]}
    who = portal.ask("GET", "/v1/session", headers=session).json()
    assert (who["user"], who["role"]) == ("oidc:admin", "operator"), who
    refused(portal.ask("GET", "/v1/accounts", headers=session), 403, "needs the role admin")
    again = arrive(portal, back, cookie)
    assert again.headers["Location"] == "/#login-stale" and "__Host-kagemusha" not in cookies_of(again), again.headers
    audit = (portal.daemon.directory / "state" / "audit.log").read_text(encoding="utf-8")
    assert '"oidc:admin"' in audit and "code=" not in audit and "state=" not in audit


def check_oidc_refusals(portal, provider):
    """another browser, another state, another provider's answer, a code twice, a person who says no: nobody gets in"""
    def ended(back, cookie):
        came = arrive(portal, back, cookie)
        assert came.status == 303 and "__Host-kagemusha" not in cookies_of(came), came.headers
        return came.headers["Location"]
    location, cookie = leave(portal)
    back = provider.come_back(location)
    assert ended(back, {}) == "/#login-stale"
    assert ended(back, cookie) == "/#login-stale"  # it was tried
    _, other = leave(portal)
    location, cookie = leave(portal)
    assert ended(provider.come_back(location), other) == "/#login-stale"
    location, cookie = leave(portal)
    back = provider.come_back(location)
    assert ended(back.replace("iss=", "iss=x"), cookie) == "/#login-wrong"
    location, cookie = leave(portal)
    state = dict(urllib.parse.parse_qsl(location.split("?", 1)[1]))["state"]
    used = urllib.parse.parse_qs(back.split("?", 1)[1])
    mixed = f"{portal.origin}/v1/login/oidc/callback?state={state}&code={used['code'][0]}&iss={used['iss'][0]}"
    assert ended(mixed, cookie) == "/#login-wrong"  # a code that belongs to another login's verifier
    location, cookie = leave(portal)
    state = dict(urllib.parse.parse_qsl(location.split("?", 1)[1]))["state"]
    assert ended(f"{portal.origin}/v1/login/oidc/callback?state={state}&error=access_denied&iss={used['iss'][0]}",
                 cookie) == "/#login-refused"


def check_oidc_changes(portal, provider):
    """the provider signs with a new key, of another kind; a person without a group gets no role; a provider that is gone"""
    provider.stop()
    provider.change(parameters=provider.new_key("rsa"))
    provider.start()
    location, cookie = leave(portal)
    assert arrive(portal, provider.come_back(location), cookie).headers["Location"] == "/"
    provider.stop()
    provider.change(groups=["others"])
    provider.start()
    location, cookie = leave(portal)
    assert arrive(portal, provider.come_back(location), cookie).headers["Location"] == "/#login-nobody"
    location, cookie = leave(portal)
    back = provider.come_back(location)
    provider.stop()
    assert arrive(portal, back, cookie).headers["Location"] == "/#login-wrong"
    assert "can't be asked" in portal.daemon.said()
    assert "-password" not in portal.daemon.said()


class Logins(Daemon):
    """A daemon whose settings have both ways, and whose PAM is pam-wrapper's."""

    def __init__(self):
        super().__init__()
        self.port = free_port()
        self.provider = Glewlwyd(self.directory / "glewlwyd", f"https://127.0.0.1:{self.port}/v1/login/oidc/callback")
        state, services = self.directory / "state", self.directory / "pam.d"
        for folder in (state, services):
            folder.mkdir(mode=0o700)
        users = self.directory / "users"
        users.write_text("".join(f"{name}:{name}-password:{of}\n" for name, of in (
            ("daemon", "kage-test"), ("games", "kage-test"), ("sync", "kage-test"), ("bin", "another"))), encoding="ascii")
        hang = self.directory / "hang"
        hang.write_text(f'#!/bin/sh\n[ "$PAM_USER" = sync ] || exit 0\ntouch {self.directory}/hangs\nexec sleep 30\n', encoding="ascii")
        hang.chmod(0o700)
        matrix = glob.glob("/usr/lib/*/pam_wrapper/pam_matrix.so")[0]
        (services / "kage-test").write_text(
            f"auth required pam_exec.so quiet {hang}\nauth required {matrix} passdb={users}\naccount required {matrix} passdb={users}\n",
            encoding="ascii")
        secret = self.directory / "secret"
        secret.write_text(PASSWORD + "\n", encoding="ascii")
        secret.chmod(0o600)
        settings = state / "login.toml"
        settings.write_text(
            '[pam]\nservice = "kage-test"\nviewers = ["bin"]\noperators = ["daemon"]\nadmins = ["root"]\n'
            f'[oidc]\nissuer = "{self.provider.issuer}"\nclient-id = "kagemusha"\nclient-secret-file = "{secret}"\n'
            f'portal = "https://127.0.0.1:{self.port}"\nlabel = "Our people"\nca-file = "{self.provider.ca}"\nscopes = ["openid"]\n'
            'viewers = ["staff"]\noperators = ["gpu"]\nadmins = ["chiefs"]\n', encoding="utf-8")
        settings.chmod(0o600)
        self.environment.update(LD_PRELOAD=WRAPPERS[0], PAM_WRAPPER="1", PAM_WRAPPER_SERVICE_DIR=str(services), no_proxy="*",
                                ASAN_OPTIONS="verify_asan_link_order=0")

    def __exit__(self, *why):
        self.provider.stop()
        super().__exit__(*why)


def main():
    missing = [name for name, there in (("etcd-server", shutil.which("etcd")), ("glewlwyd", shutil.which("glewlwyd")),
                                        ("libpam-wrapper", WRAPPERS)) if not there]
    if missing:
        print("skipped: no", ", ".join(missing), "here")
        return 77
    try:
        socket.getaddrinfo("localhost", 443)
    except socket.gaierror:
        print("skipped: /etc/hosts does not have localhost here, which the provider's certificate names")
        return 77
    assert os.path.exists(TABLES), TABLES
    TLS.minimum_version = ssl.TLSVersion.TLSv1_2
    with Logins() as daemon:
        daemon.provider.start()
        portal = Portal(daemon, daemon.port)
        checks = ((check_oidc, (portal, daemon.provider)), (check_oidc_refusals, (portal, daemon.provider)),
                  (check_pam, (portal,)), (check_pam_accounts, (portal,)), (check_slow_pam, (portal,)),
                  (check_oidc_changes, (portal, daemon.provider)))
        if os.environ.get("LOGIN_WITHOUT_PAM"):
            checks = [one for one in checks if "pam" not in one[0].__name__]
        for number, (check, given) in enumerate(checks):
            portal.source = f"127.0.0.{number + 2}"  # each address may try ten times
            check(*given)
            print("ok:", check.__doc__.strip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
