"""A stand-in of the Hugging Face Hub's HTTP API on loopback: what the library calls to create, commit and resolve."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HubStandIn:
    """Repositories in memory. ``requests`` lists what was asked; ``sizes`` overrules the size that is announced."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.sizes: dict[str, int] = {}
        self.refuse: int | None = None
        stand_in = self

        class Handler(_Handler):
            hub = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def commit_of(self, repository: str) -> str:
        files = self.files.get(repository, {})
        return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()  # noqa: S324


class _Handler(BaseHTTPRequestHandler):
    hub: HubStandIn

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(json.dumps(value).encode(), status, Content_Type="application/json")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        body, path, hub = self._body(), self.path.partition("?")[0], self.hub
        hub.requests.append(f"POST {path}")
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.refuse is not None:
            self._json({"error": "no write access"}, hub.refuse)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            hub.files.setdefault(name, {})
            self._json({"url": f"{hub.endpoint}/{name}", "id": name, "name": name})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif "/commit/" in path:
            repository = "/".join(path.split("/")[3:5])
            for line in filter(None, body.splitlines()):
                item = json.loads(line)
                if item["key"] == "file":
                    content = base64.b64decode(item["value"]["content"])
                    hub.files.setdefault(repository, {})[item["value"]["path"]] = content
            commit = hub.commit_of(repository)
            self._json(
                {"success": True, "commitOid": commit, "commitUrl": f"{hub.endpoint}/{repository}/commit/{commit}"}
            )
        else:
            self._json({"error": "not found"}, 404)

    def do_GET(self) -> None:
        path, hub = self.path.partition("?")[0], self.hub
        hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if len(parts) > 4 and parts[2] == "resolve":
            repository, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
            commit, content = hub.commit_of(repository), hub.files.get(repository, {}).get(name)
            if content is None or revision not in ("main", commit):
                self._answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
                return
            size = hub.sizes.get(name, len(content)) if self.command == "HEAD" else len(content)
            tag = hashlib.sha256(content).hexdigest()
            self._answer(content, X_Repo_Commit=commit, ETag=f'"{tag}"', Content_Length=str(size))
        elif parts[:2] == ["api", "models"] and len(parts) >= 4:
            repository = "/".join(parts[2:4])
            known = repository in hub.files
            commit = hub.commit_of(repository)
            siblings = [{"rfilename": name} for name in hub.files.get(repository, {})]
            self._json({"id": repository, "sha": commit, "siblings": siblings} if known else {}, 200 if known else 404)
        else:
            self._json({"error": "not found"}, 404)

    do_HEAD = do_GET  # noqa: N815
