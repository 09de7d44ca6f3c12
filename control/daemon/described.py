# SPDX-License-Identifier: GPL-2.0-or-later
"""
docs/openapi.json as a client reads it: whether an answer of the API is one that is described. Whoever makes a client from the
description gets what it says.
"""
import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator, RefResolver

FILE = Path(__file__).resolve().parent.parent.parent / "docs" / "openapi.json"


class Description:
    def __init__(self):
        self.whole = json.loads(FILE.read_text(encoding="utf-8"))
        self.resolver = RefResolver("", self.whole)
        self.paths = [(re.compile(re.sub(r"\{[a-z]+\}", "[^/]+", path) + r"(\?.*)?"), ways) for path, ways in self.whole["paths"].items()]

    def whole_of(self, part):
        """What a `$ref` refers to."""
        return self.resolver.resolve(part["$ref"])[1] if "$ref" in part else part

    def operation(self, method, target):
        """None: there is no such path, or not this method of it."""
        return next((ways.get(method.lower()) for path, ways in self.paths if path.fullmatch(target)), None)

    def check(self, method, target, status, body):
        operation = self.operation(method, target)
        if not operation:
            assert status in (400, 401, 403, 404, 405, 413), f"{method} {target} is not described, and answered with {status}"
            return
        assert str(status) in operation["responses"], f"{method} {target}: {status} is not described: {body}"
        content = self.whole_of(operation["responses"][str(status)]).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if schema is None:
            assert body == {}, f"{method} {target}: {status} has no described body, and answered {body}"
            return
        error = next(Draft202012Validator(schema, resolver=self.resolver).iter_errors(body), None)
        assert error is None, f"{method} {target}: {status}: {error.json_path}: {error.message}"
