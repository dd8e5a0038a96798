"""A stand-in of the Hugging Face Hub's HTTP API on loopback: what the library calls to create, commit and resolve."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class HubStandIn:
    """Repositories in memory. ``requests`` lists what was asked; ``sizes`` overrules the size that is announced."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.sizes: dict[str, int] = {}
        self.refuse: int | None = None
        listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "HEAD", "POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        threading.Thread(target=self._server.run, args=([listening],), daemon=True).start()

    def close(self) -> None:
        self._server.should_exit = True

    def commit_of(self, repository: str) -> str:
        files = self.files.get(repository, {})
        return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()  # noqa: S324

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.requests.append(f"{request.method} {path}")
        parts, body = path.strip("/").split("/"), await request.body()
        if request.method == "POST":
            self.tokens.add(request.headers.get("Authorization"))
            if self.refuse is not None:
                return JSONResponse({"error": "no write access"}, self.refuse)
            return self._written(path, "/".join(parts[2:4]), body)
        if len(parts) > 4 and parts[2] == "resolve":
            return self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), request.method)
        repository = "/".join(parts[2:4])
        if parts[:2] == ["api", "models"] and repository in self.files:
            siblings = [{"rfilename": name} for name in self.files[repository]]
            return JSONResponse({"id": repository, "sha": self.commit_of(repository), "siblings": siblings})
        return JSONResponse({"error": "not found"}, 404)

    def _written(self, path: str, repository: str, body: bytes) -> Response:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.files.setdefault(name, {})
            return JSONResponse({"url": f"{self.endpoint}/{name}", "id": name, "name": name})
        if path == "/api/validate-yaml":
            return JSONResponse({"errors": [], "warnings": []})
        if "/preupload/" in path:
            usual = {"uploadMode": "regular", "shouldIgnore": False}
            return JSONResponse({"files": [{"path": file["path"], **usual} for file in json.loads(body)["files"]]})
        for item in map(json.loads, filter(None, body.splitlines())):
            if item["key"] == "file":
                content = base64.b64decode(item["value"]["content"])
                self.files.setdefault(repository, {})[item["value"]["path"]] = content
        commit = self.commit_of(repository)
        address = f"{self.endpoint}/{repository}/commit/{commit}"
        return JSONResponse({"success": True, "commitOid": commit, "commitUrl": address})

    def _file(self, repository: str, revision: str, name: str, method: str) -> Response:
        commit, content = self.commit_of(repository), self.files.get(repository, {}).get(name)
        if content is None or revision not in ("main", commit):
            return Response(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        size = self.sizes.get(name, len(content)) if method == "HEAD" else len(content)
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        return Response(content, 200, {"X-Repo-Commit": commit, "ETag": tag, "Content-Length": str(size)})
