"""What keeps a program in: namespaces that bubblewrap made, Landlock and seccomp, limits.

Each function works on the calling process, for good.
"""

import ctypes
import errno
import fcntl
import importlib
import io
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 47, 2
CAP_DAC_READ_SEARCH = 1 << 2
LAST_CAPABILITY = 63
CAPABILITY_VERSION_3 = 0x20080522
NS_GET_USERNS = 0xB701

# No tracing, no other namespaces, no kernel interfaces around files and sockets, and no
# System V objects, which would outlive the program. `socketpair` stays: asyncio needs it.
REFUSED_CALLS = (
    "socket", "io_uring_setup", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd",
    "unshare", "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen",
    "fsmount", "mount_setattr", "open_by_handle_at", "bpf", "perf_event_open", "userfaultfd",
    "keyctl", "add_key", "request_key", "shmget", "msgget", "semget", "mq_open", "kexec_load",
    "init_module", "finit_module",
)  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)
_bindings: dict[str, Any] = {}


def load_bindings() -> None:
    """Import Landlock's and libseccomp's bindings while libraries can still be read."""
    for name in ("landlockpy", "pyseccomp"):
        try:
            _bindings[name] = importlib.import_module(name)
        except (ImportError, RuntimeError, OSError) as error:
            _bindings[name] = error


def threads() -> int:
    """Number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def address_space() -> int:
    """Bytes of address space that this process has."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def control(option: int, value: int) -> None:
    """Set one of the kernel's options for this process."""
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def namespace(pid: int, kind: str) -> int:
    """A descriptor of one of a process's namespaces: mnt, pid, net, ipc, uts or user."""
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def owner(namespace: int) -> int:
    """A descriptor of the user namespace that a namespace belongs to."""
    return fcntl.ioctl(namespace, NS_GET_USERNS)


def join(namespace: int) -> None:
    """Enter a namespace, given by its descriptor; raises OSError when the kernel refuses."""
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")


def become(uid: int, *, keep: int = 0) -> None:
    """Another user for good, who has nothing but the capabilities whose bits `keep` has."""
    if keep:
        control(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    drop_capabilities(keep=keep)


def drop_capabilities(*, keep: int = 0) -> None:
    """Give up every capability but those of `keep`, and all ways to get one back."""
    for capability in range(LAST_CAPABILITY + 1):
        # Fails past the kernel's last one, and where none may be dropped: then none is there.
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(keep, keep, keep, 0, 0, 0)
    if libc.capset(ctypes.byref(header), ctypes.byref(sets)):
        raise OSError(ctypes.get_errno(), "capset")
    for capability in range(LAST_CAPABILITY + 1):
        if keep >> capability & 1:
            # Without this a program that is started would lose them.
            libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0)
    control(PR_SET_NO_NEW_PRIVS, 1)


def limit(limits: dict[str, int], seconds: float, base_bytes: int) -> None:
    """Bounds of memory (over `base_bytes`), file size, open files, processes, core and CPU."""
    for name, value in (
        (resource.RLIMIT_AS, base_bytes + limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds) + 5),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Landlock: only these files and folders; seccomp: none of `REFUSED_CALLS`."""
    for name, binding in _bindings.items():
        if isinstance(binding, Exception):
            raise OSError(errno.ENOSYS, f"{name}: {binding}")
    landlock, seccomp = _bindings["landlockpy"], _bindings["pyseccomp"]
    everything = landlock.fs_for_abi(landlock.abi_version())
    access = landlock.AccessFS
    reading = access.READ_FILE | access.READ_DIR | access.EXECUTE
    of_files = access.READ_FILE | access.EXECUTE | access.WRITE_FILE | access.TRUNCATE
    control(PR_SET_NO_NEW_PRIVS, 1)
    ruleset = landlock.Ruleset(scoped=landlock.scope_for_abi(landlock.abi_version()))
    granted = [(path, reading) for path in readable] + [(path, everything) for path in writable]
    for path, rights in granted:
        if os.path.exists(path):
            ruleset.allow_path(path, rights if os.path.isdir(path) else rights & of_files)
    ruleset.restrict()
    calls = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in REFUSED_CALLS:
        try:
            calls.add_rule(seccomp.ERRNO(errno.EPERM), name)
        except (OSError, ValueError, RuntimeError):
            # A call that this libseccomp does not know by name.
            continue
    calls.load()


def close_others(kept: Iterable[int]) -> None:
    """Close every descriptor but the standard ones and `kept`."""
    last = 2
    for descriptor in sorted(kept):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 16)


class Discard(io.StringIO):
    """Standard output that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def readable(self) -> bool:
        return False


def silence() -> None:
    """Empty standard input; what is printed goes nowhere."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), Discard(), Discard()


def settle(folder: str, environment: dict[str, str]) -> None:
    """Work in `folder`, with `environment` in place of the server's."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Libraries that were loaded before may have asked for it already.
    tempfile.tempdir = None
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
