"""A pretended GPU: the device "gpu", torch's PrivateUse1 over the host's memory, for tests without one.

    pretend_gpu.install(); ...; x.to(pretend_gpu.GPU); pretend_gpu.counts

Values are right, because the CPU computes them. What CUDA refuses is refused, in its words: tensors of two devices in
one operation, `.numpy()`, a CPU generator for a draw on the device. It goes through torch's dispatch, autograd with its
device thread, vmap, autocast and foreach as CUDA does: every kernel of torch is registered under its own name to one
Python function, which checks, counts and computes on the CPU.

counts: "launch" (kernels, at least one an operation; MANY has those of several), "sync" (the host waits), "h2d" and
"d2h" (bytes); `places` has the same by line of fedlib. Not modelled: rounding, atomics, streams, memory size, time.
"""
import ctypes
import functools
import os
import sys
import types
from collections import Counter

import torch
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "gpu"
counts, places = Counter(), Counter()       # by kind; by (kind, line)
# (kernels, waits of the host) of operations that are more than one launch in ATen's CUDA kernels, read or estimated
MANY = {"bincount": (4, 2), "nonzero": (3, 1), "_unique2": (6, 2), "unique_dim": (8, 2), "unique_consecutive": (6, 2),
        "masked_select": (4, 1), "sort": (3, 0), "repeat_interleave": (2, 1), "_local_scalar_dense": (0, 1),
        "_index_put_impl_": (5, 0), "convolution_backward": (3, 0), "multinomial": (3, 0), "linalg_qr": (8, 0),
        "_cdist_backward": (2, 0)}
FREE = {"empty", "empty_strided", "resize_", "set_", "new_empty", "_efficientzerotensor"}
MIXED = {"index", "_copy_from", "_copy_from_and_resize", "_index_put_impl_", "index_put"}   # may take two devices
VIEWS = ("as_strided", "set_.source_Storage", "view", "_reshape_alias", "unfold", "set_.source_Tensor",
         "set_.source_Storage_storage_offset")
LOW = ("conv2d", "conv1d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
HIGH = ("softmax.int", "log_softmax.int", "nll_loss", "cross_entropy_loss", "exp", "log", "pow.Tensor_Scalar",
        "norm.ScalarOpt_dim", "layer_norm", "group_norm", "cdist", "cosine_similarity", "prod", "sum", "cumsum",
        "rsqrt", "kl_div", "softplus")


class Device(str):
    """The device as fedlib gets it; in words it is a CUDA device, so that the branches for one run."""

    def __str__(self):
        return "cuda:0"


GPU = Device(NAME)
_libraries, _clone = [], torch.UntypedStorage.clone


def install():
    """Make the device; once in a process."""
    if _libraries:
        return
    module = types.SimpleNamespace(
        is_initialized=lambda: True, is_available=lambda: True, current_device=lambda: 0, device_count=lambda: 1,
        _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        synchronize=lambda device=None: count("sync"))
    _setup_privateuseone_for_python_backend(NAME, module)
    torch.cuda.mem_get_info = lambda device=None: (2**33, 2**34)        # bytes that are free, and all
    torch.UntypedStorage.clone = cloned
    aten, autocast = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend((aten, autocast))
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        known = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CUDA", "CPU"))
        if not name.startswith("aten::") or not known:
            continue
        op, short = getattr(getattr(torch.ops.aten, packet), overload or "default", None), name.removeprefix("aten::")
        if op is None or short in ("_copy_from", "resize_"):
            continue
        looks = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
        aten.impl(short, functools.partial(view if short in VIEWS or looks else kernel, op), "PrivateUse1")
    aten.impl("_copy_from", copied, "PrivateUse1")
    aten.impl("resize_", resized, "PrivateUse1")
    for short in ("convolution_overrideable", "convolution_backward_overrideable"):
        real = getattr(torch.ops.aten, short.replace("_overrideable", "")).default
        aten.impl(short, functools.partial(kernel, real), "PrivateUse1")
    autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for short, to in [*((s, None) for s in LOW), *((s, torch.float32) for s in HIGH)]:
        packet, _, overload = short.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(short, functools.partial(cast, op, to), "AutocastPrivateUse1")


def clear():
    """Count from nothing."""
    counts.clear(), places.clear()


def count(kind: str, n: int = 1):
    """Add to what happened at the nearest line of fedlib."""
    if n:
        counts[kind] += n
        places[kind, place()] += n


def place() -> str:
    """'methods/base.py:134'; "backward", whose thread has no Python below it."""
    frame, inside = sys._getframe(2), f"{os.sep}fedlib{os.sep}"
    while frame:
        if inside in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename.rpartition(inside)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "backward"


# memory: a tensor of one device is one of the other over the same bytes; DLPack names PrivateUse1 "extension", 12

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def over(t: torch.Tensor, kind: int) -> torch.Tensor:
    """The same bytes as a tensor of another device."""
    capsule = torch._C._to_dlpack(t)
    (ctypes.c_int32 * 2).from_address(_pointer(capsule, b"dltensor") + 8)[:] = kind, 0
    made = torch._C._from_dlpack(capsule)
    return made if made.stride() == t.stride() else made.as_strided(t.shape, t.stride())


def host(t):
    return over(t, 1) if t.device.type == NAME else t


def device(t):
    return over(t.detach().resolve_conj().resolve_neg(), 12)


def cloned(storage):
    """What copy.deepcopy of a tensor calls; the device has no allocator of its own."""
    if storage.device.type != NAME:
        return _clone(storage)
    return torch.empty(0, dtype=torch.uint8, device=NAME).set_(storage).clone().untyped_storage()


# operations

def refuse(name: str, op, tensors: list, args, kwargs):
    """RuntimeError where CUDA would raise one."""
    cpu = [t for t in tensors if t.device.type == "cpu" and (t.dim() or torch.Tag.pointwise not in op.tags)]
    if cpu and len(cpu) < len(tensors) and name not in MIXED:
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, "
                           f"{NAME}:0 and cpu! (in {name})")
    if name == "index" and args[0].device.type == "cpu" and any(
            i is not None and i.device.type == NAME for i in args[1]):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    drawn_by = kwargs.get("generator")
    if drawn_by is not None and drawn_by.device.type == "cpu":
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")


def kernel(op, *args, **kwargs):
    """One operation: refused, counted, or computed on the CPU over the same memory."""
    schema, name = op._schema, op._schema.name.split("::")[1]
    tensors = []
    tree_map_only(torch.Tensor, tensors.append, (args, kwargs))
    refuse(name, op, tensors, args, kwargs)
    launches, waits = MANY.get(name, (int(name not in FREE), 0))
    if name == "index":             # a mask becomes positions first; positions on the CPU are sent
        masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        launches, waits = 1 + 3 * len(masks), len(masks)
        for i in (i for i in args[1] if i is not None and i.device.type == "cpu"):
            count("h2d", i.nbytes)
            waits += 1
    count("launch", launches)
    count("sync", waits)
    if name == "_local_scalar_dense":
        count("d2h", args[0].element_size())
    if "device" in kwargs:
        kwargs["device"] = "cpu"
    kwargs.pop("pin_memory", None)
    a, k = tree_map_only(torch.Tensor, host, (args, kwargs))
    written = {i: s.name for i, s in enumerate(schema.arguments) if s.alias_info is not None and s.alias_info.is_write}

    def argument(i, given, named):
        return given[i] if i < len(given) else named.get(written[i])
    if any(isinstance(v := argument(i, args, kwargs), torch.Tensor) and not v.numel() for i in written):
        a, k = tree_map_only(torch.Tensor, lambda t: t if t.numel() else t.clone(), (a, k))     # it may grow
    plain = any(isinstance(v, int | float | complex) and str(s.type) == "Tensor"
                for v, s in zip(args, schema.arguments))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        out = (op.overloadpacket if plain else op)(*a, **k)
    for i in written:
        mine, theirs = argument(i, args, kwargs), argument(i, a, k)
        if isinstance(mine, torch.Tensor) and mine.shape != theirs.shape:
            take(mine, device(theirs))
    if out is None:
        return None
    made = []
    for r, value in zip(schema.returns, [out] if len(schema.returns) == 1 else out):
        own = r.alias_info is not None and r.alias_info.is_write
        at = next((i for i in written if own and schema.arguments[i].alias_info.before_set == r.alias_info.before_set),
                  None)
        made.append(tree_map_only(torch.Tensor, device, value) if at is None else argument(at, args, kwargs))
    return made[0] if len(made) == 1 else tuple(made)


def take(t, other):
    """Let a tensor have another's memory and shape."""
    return torch.ops.aten.set_.source_Tensor(t, other)


def resized(t, size, memory_format=None):
    return t if t.shape == torch.Size(size) else take(t, device(torch.empty(size, dtype=t.dtype)))


def view(op, *args, **kwargs):
    """A view of the same storage: nothing in the CPU's kernels of these depends on the device."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)


def copied(source, target, non_blocking=False):
    """Between the devices, or on the device."""
    way = {("cpu", NAME): "h2d", (NAME, "cpu"): "d2h"}.get((source.device.type, target.device.type))
    count("launch")
    if way:
        count(way, source.numel() * source.element_size())
        count("sync", int(not non_blocking))
    host(target).copy_(host(source))
    return target


def cast(op, to, *args, **kwargs):
    """Autocast's rule for an operation in lower precision (to: None), or in float32."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        to = to or torch.get_autocast_dtype(NAME)

        def converted(t):
            low = t.is_floating_point() and t.device.type == NAME and t.dtype != torch.float64
            return t.to(to) if low else t
        args, kwargs = tree_map(lambda v: converted(v) if isinstance(v, torch.Tensor) else v, (args, kwargs))
        return op(*args, **kwargs)
