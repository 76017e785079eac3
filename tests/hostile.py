"""Damage to real files, drawn by hypothesis: to their structure, to their bytes, to a safetensors header."""
import copy
import json
import struct

from hypothesis import strategies as st

DEEP = json.loads("[" * 60 + "]" * 60)
JUNK = [None, True, False, 0, 1, -1, 2**31, 10**18, 10**400, 0.5, -1e308, float("nan"), float("inf"), "", "x", "a/b",
        "../..", "\0", "é\n", "1e999", "x" * 5000, [], [[]], [1, "a", None], {}, {"": 0}, {"a": {"b": []}}, DEEP]


def places(value, found=None) -> list:
    """(container, key) of everything below a value."""
    found = [] if found is None else found
    for k, v in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found.append((value, k))
        places(v, found)
    return found


@st.composite
def changed(draw, value, junk=JUNK):
    """A copy with one to three changes: a key dropped, another type, a value twice, renamed, wrapped, or swapped."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        if not (every := places(value)):
            break
        place, key = every[draw(st.integers(0, len(every) - 1))]
        how = draw(st.sampled_from(["junk"] * 4 + ["drop"] * 2 + ["twice", "rename", "wrap", "swap", "scale"]))
        if how == "junk":
            place[key] = copy.deepcopy(draw(st.sampled_from(junk)))
        elif how == "drop":
            del place[key]
        elif how == "twice" and isinstance(place, list):
            place.insert(key, copy.deepcopy(place[key]))
        elif how == "rename" and isinstance(place, dict):
            place[draw(st.sampled_from([key + "x", "", "0", "acc", "name"]))] = place.pop(key)
        elif how == "wrap":
            place[key] = draw(st.sampled_from([[place[key]], {"a": place[key]}]))
        elif how == "swap":
            other, name = every[draw(st.integers(0, len(every) - 1))]
            if name in other if isinstance(other, dict) else name < len(other):
                place[key] = copy.deepcopy(other[name])
        elif how == "scale" and type(place[key]) in (int, float) and abs(place[key]) < 1e18:
            place[key] = draw(st.sampled_from([-place[key], place[key] * 10**6, place[key] + 1, float(place[key])]))
    return value


@st.composite
def garbled(draw, content: bytes):
    """A copy of the bytes with flips, a cut, zeros at its end, or a part of it twice."""
    content = bytearray(content)
    how = draw(st.sampled_from(["flip", "flip", "cut", "zeros", "twice", "deep"]))
    at = draw(st.integers(0, len(content) - 1))
    if how == "flip":
        for _ in range(draw(st.integers(1, 8))):
            content[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    elif how == "cut":
        del content[at:]
    elif how == "zeros":
        content[at:] = bytes(len(content) - at)
    elif how == "twice":
        content[at:at] = content[at:at + draw(st.integers(1, 200))]
    else:
        content[at:at] = b"[" * 100_000
    return bytes(content)


def unpacked(content: bytes) -> tuple[dict, bytes]:
    """(header, tensors) of a safetensors file."""
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), content[8 + size:]


def packed(header, tensors: bytes, size=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if size is None else size) + text + tensors


@st.composite
def crafted(draw, content: bytes):
    """A safetensors file with another header: lengths, offsets, types, shapes, names, metadata."""
    header, tensors = unpacked(content)
    names = [k for k in header if k != "__metadata__"]
    how = draw(st.sampled_from(["length", "offsets", "dtype", "shape", "double", "about", "any", "any", "bytes"]))
    if how == "bytes":
        return draw(garbled(content))
    if how == "length":
        size = draw(st.sampled_from([0, 1, 7, 8, 10**8, 2**31, 2**63, 2**64 - 1]) | st.integers(0, len(content) + 9))
        return packed(header, tensors, size)
    if how == "double":        # one name, two tensors
        name = draw(st.sampled_from(names))
        again = json.dumps({name: header[draw(st.sampled_from(names))]})
        return packed((json.dumps(header)[:-1] + ", " + again[1:]).encode(), tensors)
    one = header[draw(st.sampled_from(names))]
    if how == "offsets":
        one["data_offsets"] = draw(st.lists(st.integers(0, len(tensors) + 8) | st.sampled_from([2**63, 10**30, -8]),
                                            min_size=1, max_size=3))
    elif how == "dtype":
        one["dtype"] = draw(st.sampled_from("F64 F32 F16 BF16 I64 I32 I16 I8 U8 U16 U64 BOOL F8_E4M3 F8_E8M0 F4 C64 "
                                            "F6_E2M3 XX".split()))
    elif how == "shape":
        one["shape"] = draw(st.lists(st.sampled_from([0, 1, 2, 10, 49, 2**32, 2**63, -1]), max_size=5))
    elif how == "about":
        about = header["__metadata__"] = dict(header.get("__metadata__") or {})
        if "about" in about:
            about["about"] = json.dumps(draw(changed(json.loads(about["about"]))))
    else:
        header = draw(changed(header))
    return packed(header, tensors)


def toml(value, top: bool = True) -> str:
    """Plain data as TOML, everything below the first level inline."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(k)} = {toml(v, False)}" for k, v in value.items()]
        return "\n".join(pairs) if top else "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(v, False) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)        # null is not TOML, and refused
