"""The program named ``nvidia-smi`` that stands first in the PATH of an environment.

It asks the broker what to write. It is started often, so it imports next to nothing; the broker
writes it, with an interpreter and the broker's address, into a directory of its user alone
(``install.py``). In doubt NVIDIA's own program runs, and a line says why.
"""

import _signal  # type: ignore[import-not-found]  # signal imports enum
import _socket
import posix
import sys
import time

ADDRESS = b""
SECONDS = 10.0
LONGEST = 64 * 2**20
MARK = b"genv-jupyter"
"""What our programs have in their first lines, and NVIDIA's has not."""


def main() -> int:
    """Answer a call; return the exit code."""
    for number in (_signal.SIGINT, _signal.SIGPIPE):
        _signal.signal(number, _signal.SIG_DFL)  # end as a program in C does
    arguments = sys.argv[1:]
    environment = posix.environ.get(b"GENV_JUPYTER_ENVIRONMENT", b"").decode("ascii", "replace")
    if not environment or posix.environ.get(b"GENV_JUPYTER_BYPASS", b"0") not in (b"", b"0"):
        return run_real(arguments, "")
    rounds = 0
    while True:
        try:
            status, answer = ask(environment, arguments, rounds)
            if status == 200:
                check(answer, arguments)
        except (OSError, ValueError) as error:
            return fall_back(arguments, f"the GPU broker is not reachable ({error}).")
        if status != 200:
            return fall_back(arguments, str(answer.get("message")), known=status != 404)
        if answer["stderr"]:
            write(2, answer["stderr"])
        if answer["pass_through"] is not None:
            return run_real(answer["pass_through"], answer["stdout"], answer["exit_code"])
        if not tell(answer, rounds):
            return 255
        if answer["repeat"] is None:
            return int(answer["exit_code"])
        rounds += 1
        time.sleep(answer["repeat"] / 1000)


def check(answer: "dict", arguments: "list[str]") -> None:  # type: ignore[type-arg]
    """See that a broker, which may not be our user's, names no file and no option of its own.

    Raises
    ------
    ValueError
        It does.
    """
    kept, files, before = [], [], ""
    for word in (word.encode("utf-8", "replace").decode() for word in arguments):
        option, equals, value = word.partition("=")
        if option in ("-f", "--filename") and equals:
            files.append(value)
        elif before in ("-f", "--filename"):
            files.append(word)
        if option not in ("-i", "--id") and before not in ("-i", "--id"):
            kept.append(word)
        before = "" if before in ("-f", "--filename", "-i", "--id") else word
    if answer["file"] is not None and answer["file"] not in files:
        raise ValueError("it names a file that nobody has asked for")
    passed = answer["pass_through"]
    if passed is None or passed == kept:
        return
    restricted = passed[: len(kept)] == kept and passed[len(kept) : -1] == ["-i"]
    if not restricted or not all(letter.isalnum() or letter in "-,/" for letter in passed[-1]):
        raise ValueError("it has options that nobody has asked for")


def tell(answer: "dict", rounds: int) -> bool:  # type: ignore[type-arg]
    """Write the answer where it is wanted; say whether that went well."""
    if answer["file"] is None:
        write(1, answer["stdout"])
        return True
    flags = posix.O_WRONLY | posix.O_CREAT | (posix.O_APPEND if rounds else posix.O_TRUNC)
    try:
        file = posix.open(answer["file"], flags, 0o666)
    except (OSError, ValueError):
        write(1, f"Failed to create the log file {answer['file']}\n\n")
        return False
    write(file, answer["stdout"])
    posix.close(file)
    return True


def write(descriptor: int, text: str) -> None:
    """Write all of a text; where nothing can be written, end."""
    rest = text.encode("utf-8", "replace")
    try:
        while rest:
            rest = rest[posix.write(descriptor, rest) :]
    except OSError as error:
        if descriptor == 2:
            return  # what is said there is a remark
        write(2, f"nvidia-smi: nothing can be written ({error}).\n")
        posix._exit(1)


# -- the broker ------------------------------------------------------------------------------------


def ask(environment: str, arguments: "list[str]", rounds: int) -> "tuple[int, dict]":  # type: ignore[type-arg]
    """Put the call to the broker; return the status and the body of what it answers."""
    if not environment.replace("-", "").replace("_", "").isalnum():
        raise ValueError("GENV_JUPYTER_ENVIRONMENT is not an id")
    words = ",".join(quoted(argument) for argument in arguments)
    body = f'{{"args":[{words}],"rounds":{rounds}}}'.encode("ascii")
    head = (
        f"POST /v1/environments/{environment}/nvidia-smi HTTP/1.1\r\nHost: broker\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(SECONDS)
        sock.connect(ADDRESS)
        credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        # Anybody may take an abstract name; a path is in a directory that we trust.
        if ADDRESS[:1] == b"\0":
            uid = int.from_bytes(credentials[4:8], sys.byteorder)
            if uid != posix.getuid():
                raise OSError(f"its name is taken by a process of uid {uid}")
        sock.sendall(head.encode("ascii") + body)
        received = b""
        while data := sock.recv(65536):
            received += data
            if len(received) > LONGEST:
                raise ValueError("it answers too much")
    finally:
        sock.close()
    return parse(received)


def parse(received: bytes) -> "tuple[int, dict]":  # type: ignore[type-arg]
    """Read an HTTP answer."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split()
    if len(words) < 2:
        raise ValueError("it closed the connection")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and int(value) != len(body):
            raise ValueError("its answer broke off")
    return int(words[1]), loads(body.decode())


def quoted(text: str) -> str:
    """Write a text as JSON has it; bytes that are no UTF-8 become question marks."""
    text = text.encode("utf-8", "replace").decode()
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import py_encode_basestring_ascii as encode_basestring_ascii
    return encode_basestring_ascii(text)


class _Context:
    """What the scanner of ``json`` wants to know; importing all of ``json`` doubles our time."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def loads(text: str) -> "dict":  # type: ignore[type-arg]
    """Read a JSON object."""
    try:
        from _json import make_scanner
    except ImportError:
        from json import loads as read

        found = read(text)
    else:
        try:
            found = make_scanner(_Context)(text, 0)[0]  # type: ignore[arg-type]
        except StopIteration:
            raise ValueError("it answers what is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it answers what is no object")
    return found


# -- NVIDIA's own ----------------------------------------------------------------------------------


def fall_back(arguments: "list[str]", why: str, known: bool = True) -> int:
    """Run NVIDIA's own because the broker cannot answer: for the devices that are visible here."""
    write(2, f"genv-jupyter: {why} NVIDIA's own nvidia-smi answers, for whole devices.\n")
    visible = posix.environ.get(b"CUDA_VISIBLE_DEVICES", b"").decode("ascii", "replace")
    plain = all(word[:1] == "-" for word in arguments[:1])
    taken = {"-i", "--id", "-L", "--list-gpus", "-h", "--help"}
    if known and visible and plain and taken.isdisjoint(w.split("=")[0] for w in arguments):
        arguments = [*arguments, "-i", visible]
    return run_real(arguments, "")


def run_real(arguments: "list[str]", otherwise: str, code: int = 127) -> int:
    """Become NVIDIA's program; where there is none, say so and return the code."""
    words = [word.encode("utf-8", "surrogateescape") for word in arguments]
    directories = posix.environ.get(b"PATH", b"/usr/bin:/bin").split(b":")
    others = [one for one in directories if kind_of(in_directory(one)) != "ours"]
    # Without us: a wrapper that looks for the next one in PATH would find us again, for ever.
    environ = {**posix.environ, b"PATH": b":".join(others)}
    for directory in others:
        path = in_directory(directory)
        if kind_of(path) == "real":
            try:
                posix.execve(path, [b"nvidia-smi", *words], environ)
            except OSError:  # no program after all: shells look further too
                continue
    if otherwise:
        write(1, otherwise)
    else:
        write(2, "nvidia-smi: NVIDIA's own nvidia-smi is not in PATH.\n")
    return code


def in_directory(directory: bytes) -> bytes:
    """Return where a directory of PATH would have the program; an empty one is this one."""
    return (directory or b".") + b"/nvidia-smi"


def kind_of(path: bytes) -> str:
    """Say whether a path is a program, and one of ours: two of them could call each other."""
    try:
        if not posix.access(path, posix.X_OK):
            return ""
        file = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if posix.fstat(file).st_mode & 0o170000 != 0o100000:  # a directory, a pipe
            return ""
        return "ours" if MARK in posix.read(file, 512) else "real"
    except OSError:
        return ""
    finally:
        posix.close(file)
