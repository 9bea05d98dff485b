#!/usr/bin/env python3
"""Checks the test vectors of SPEC.md section 7 with nothing but Python's standard library.

This is a second, independent implementation of the section, short enough to be ported to any language.
With --write it fills in what the vectors expect (mark, canonical, sha256) instead of comparing it.
"""

import base64
import hashlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent

# Fields in the order of their numbers. A trailing "?" means explicit presence.
ADDRESS = {"type": "integer", "address": "string"}
NODE = {
    "name": "string",
    "uid": "string",
    "labels": "map",
    "provider_id": "string",
    "addresses": [ADDRESS],
    "zone": "string",
}
NODES = [NODE]
PORT = {
    "name": "string",
    "protocol": "integer",
    "port": "integer",
    "node_port": "integer?",
    "target_port": "string",
    "app_protocol": "string",
}
DURATION = {"seconds": "integer", "nanos": "integer"}
HEALTH_CHECK = {"node_port": "integer", "path": "string"}
SPEC = {
    "name": "string",
    "class": "string",
    "labels": "map",
    "annotations": "map",
    "ports": [PORT],
    "ip_families": ["integer"],
    "ip_family_policy": "integer",
    "cluster_ips": ["string"],
    "external_ips": ["string"],
    "requested_addresses": ["string"],
    "source_ranges": ["string"],
    "session_affinity": "integer",
    "session_affinity_timeout": DURATION,
    "external_traffic_policy": "integer",
    "internal_traffic_policy": "integer",
    "traffic_distribution": "string",
    "publish_not_ready_addresses": "integer",
    "health_check": HEALTH_CHECK,
    "allocate_node_ports": "integer?",
}
FINGERPRINT = {"spec_digest": "string", "behaviour_digest": "string"}


def mark(cluster_uid, service_uid, role):
    digest = hashlib.sha256(f"{cluster_uid}/{service_uid}/{role}".encode()).digest()
    return "bh-" + base64.b32encode(digest).decode().lower()[:26]


def string(value):
    data = value.encode()
    return b"%d:%s" % (len(data), data)


def canonical(kind, value):
    if isinstance(kind, dict):
        return b"d" + b"".join(field(name, kind[name], value.get(name)) for name in kind) + b"e"
    if isinstance(kind, list):
        return b"l" + b"".join(canonical(kind[0], item) for item in value) + b"e"
    if kind == "map":
        return b"d" + b"".join(string(key) + string(value[key]) for key in sorted(value, key=str.encode)) + b"e"
    if kind == "string":
        return string(value)
    return b"i%de" % value


def field(name, kind, value):
    present = isinstance(kind, dict) or (isinstance(kind, str) and kind.endswith("?"))
    if value is None or (not present and not value):
        return b""
    return string(name) + canonical(kind, value)


def keep(entries, declared):
    """The entries whose keys the plugin declared; "/" or "*" at the end makes a prefix."""

    def matches(key, pattern):
        if pattern.endswith(("/", "*")):
            return key.startswith(pattern.removesuffix("*"))
        return key == pattern

    return {key: value for key, value in entries.items() if any(matches(key, pattern) for pattern in declared)}


def node_set(vector):
    nodes = sorted(vector["nodes"], key=lambda node: (node["name"].encode(), node["uid"].encode()))
    nodes = [dict(node, labels=keep(node.get("labels", {}), vector["label_keys"])) for node in nodes]
    return canonical(NODES, nodes)


def spec(vector):
    value = dict(vector["spec"])
    value["labels"] = keep(value.get("labels", {}), vector["label_keys"])
    value["annotations"] = keep(value.get("annotations", {}), vector["annotation_keys"])
    return canonical(SPEC, value)


def expectations(vector, form):
    return {"canonical": form.decode(), "sha256": hashlib.sha256(form).hexdigest()}


def settle(vectors, expected_of, write):
    wrong = 0
    for vector in vectors:
        expected = expected_of(vector)
        if write:
            vector.update(expected)
            continue
        for key, value in expected.items():
            if vector.get(key) != value:
                wrong += 1
                print(f"{vector['name']}: {key} is {vector.get(key)!r}, not {value!r}", file=sys.stderr)
    return wrong


def main():
    write = "--write" in sys.argv[1:]
    wrong = 0
    checks = {
        "marks.json": {
            "marks": lambda v: {"mark": mark(v["cluster_uid"], v["service_uid"], v["role"])},
        },
        "digests.json": {
            "node_sets": lambda v: expectations(v, node_set(v)),
            "specs": lambda v: expectations(v, spec(v)),
            "fingerprints": lambda v: expectations(v, canonical(FINGERPRINT, v)),
        },
    }
    for file, groups in checks.items():
        path = HERE / file
        document = json.loads(path.read_text())
        for group, expected_of in groups.items():
            wrong += settle(document[group], expected_of, write)
        if write:
            path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
